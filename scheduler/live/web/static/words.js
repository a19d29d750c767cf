// How things are said: numbers with units, times in the reader's zone, reasons in words.

const TWO = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (number) => WHOLE.format(number);
export const figure = (number) => (number === null || number === undefined ? "–" : TWO.format(number));
export const percent = (part) => (part === null || part === undefined ? "–" : `${TWO.format(100 * part)} %`);

/** 0.34 -> "$0.34"; 12345.6 -> "$12,346". */
export function money(usd) {
  if (usd === null || usd === undefined) return "–";
  const digits = Math.abs(usd) >= 1000 ? 0 : 2;
  return `$${usd.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** Bytes, such as "1.5 MiB". */
export function size(bytes) {
  const [unit, name] = SIZES.find(([least]) => bytes >= least) || [1, "B"];
  return `${figure(bytes / unit)} ${name}`;
}

/** 95 -> "1 min 35 s"; 90000 -> "1 d 1 h". The two largest units. */
export function length(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const many = Math.floor(left / size);
    left -= many * size;
    if (many) parts.push(`${many} ${name}`);
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** An instant (text or Unix seconds) in the reader's zone: the hour today, with the day otherwise. */
export function instant(when) {
  if (when === null || when === undefined) return "–";
  const date = typeof when === "number" ? new Date(1000 * when) : new Date(when);
  return (date.toDateString() === new Date().toDateString() ? CLOCK : DAY).format(date);
}

export const exactly = (when) => (when ? FULL.format(new Date(when)) : "");
export const secondsSince = (when) => (when ? (Date.now() - Date.parse(when)) / 1000 : null);

const REASONS = {
  "WAIT:NOT_EVALUATED": "has not been looked at yet",
  "WAIT:CAPACITY": "waits for accelerators to become free",
  "WAIT:FRAGMENTED": "enough is free, but not together",
  "WAIT:PRICE": "worth less than the price of a place now",
  "WAIT:PRIORITY": "jobs of higher priority are first",
  "WAIT:FAIRSHARE": "others are owed more",
  "WAIT:GANG": "waits until its whole gang fits",
  "WAIT:RESERVATION": "the free places are kept for a larger job",
  "WAIT:PROFILING": "its speed is being measured",
  "WAIT:PREEMPTING": "its place is being cleared",
  "WAIT:PROVISIONING": "a machine is being rented for it",
  "WAIT:DEPENDENCY": "waits for another job",
  "WAIT:NOT_BEFORE": "was asked to start later",
  "WAIT:BACKOFF": "pauses before it is tried again",
  "WAIT:QUOTA": "its project or user holds all it may",
  "WAIT:BUDGET": "its budget is spent",
  "WAIT:SWEEP": "its sweep runs as many jobs at once as it may",
  "WAIT:BOOKED": "the machines are reserved for others",
  "HOLD:USER": "held by its owner",
  "HOLD:ADMIN": "held by an operator",
  "HOLD:BUDGET": "held: its budget is spent",
  "HOLD:REPEATED_FAILURE": "held: it failed again and again",
  "HOLD:IDLE": "held: its accelerators stood idle",
  "CONFIG:NO_SUCH_ACCELERATOR": "no pool has such accelerators",
  "CONFIG:EXCEEDS_FLEET": "asks for more than the fleet has",
  "CONFIG:EXCEEDS_LARGEST_NODE": "no machine is large enough",
  "USER:EXIT_CODE": "its script ended with an error",
  "USER:SIGNAL": "its script was ended by a signal",
  "USER:OOM": "it ran out of memory",
  "USER:CANCELLED": "cancelled",
  "USER:DEPENDENCY_FAILED": "the job it depends on did not succeed",
  "INFRA:NODE_LOST": "its machine was lost",
  "INFRA:SPOT_RECLAIM": "its spot machine was taken back",
  "INFRA:LEASE_EXPIRED": "its machine was silent for too long",
  "INFRA:START_TIMEOUT": "it did not start in time",
  "INFRA:START_REFUSED": "its machine could not start it",
  "INFRA:CHECKPOINT_LOST": "its checkpoint was lost",
  "INFRA:DEVICE_FAULT": "a GPU of its machine is at fault",
  "POLICY:PREEMPTED": "made way for another job",
  "POLICY:MOVED": "moved to other accelerators",
  "POLICY:RELEASED": "its rented machine was given back",
  "POLICY:DRAINED": "its machine is drained",
  "POLICY:MAX_RUNTIME": "reached its longest run time",
  "POLICY:MAX_QUEUE_TIME": "waited longer than it was to",
};

/** The one dominant reason of a job, in words; empty for one that runs. */
export function reason(job) {
  if (job.why) return typeof job.why === "string" ? job.why : job.why.text || "";
  return job.reason ? REASONS[job.reason] || job.reason : "";
}

/** How far ahead forecasts look, seconds (`walras.contract.FORECAST_AHEAD_S`): what is so far may come later. */
const AHEAD_S = 14 * 86400;

/** "about 16:40 (16:20 to 17:30)", always with its interval; empty where nothing is foreseen. */
export function expected(span, asOf) {
  if (!Array.isArray(span) || span.length !== 3 || !span.every((each) => typeof each === "number")) return "";
  return `about ${instant(span[1])} (${instant(span[0])} ${span[2] >= asOf + AHEAD_S - 1 ? "or later" : `to ${instant(span[2])}`})`;
}

/** When a job starts or ends (`which`: "start" or "end"): about when, or after when at least; empty where nobody can tell. */
export function foreseen(forecast, which) {
  if (!forecast) return "";
  const after = forecast[`${which}s_after`];
  const told = expected(forecast[which], forecast.as_of) || (typeof after === "number" ? `after ${instant(after)}, in nine futures of ten` : "");
  return told && Date.now() / 1000 - forecast.as_of > 60 ? `${told}, as of ${instant(forecast.as_of)}` : told;
}

/** The hue of a job: neighbours in number are far apart in colour. */
export const hue = (jobId) => Math.round((jobId * 137.508) % 360);

const FINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"]);
export const isOver = (state) => FINAL.has(state);

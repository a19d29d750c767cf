"""Post-training in two roles: rollouts sample from the policy that they are sent, a trainer learns from the rewards.

python post_training.py trainer        asks every address in WALRAS_PEERS_ROLLOUT once a step
python post_training.py rollout        answers at its own

The task is to answer each of eight prompts with the one token of eight that is rewarded (REINFORCE).
"""

import json
import os
import signal
import socket
import sys
import time
from typing import Any

import torch

from walras.training import Checkpoint, Loop

TOKENS, SAMPLES, STEPS = 8, 64, 400


def peers() -> list[tuple[str, int]]:
    """Host and port of each rollout."""
    places = (each.rpartition(":") for each in os.environ["WALRAS_PEERS_ROLLOUT"].split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in places]


def ask(place: tuple[str, int], question: dict[str, Any]) -> dict[str, Any]:
    """Returns a rollout's answer; one that is being started again is waited for."""
    until = time.monotonic() + 30.0
    while True:
        try:
            with socket.create_connection(place, timeout=30.0) as connection, connection.makefile("rw") as stream:
                print(json.dumps(question), file=stream, flush=True)
                answer: dict[str, Any] = json.loads(stream.readline())
                return answer
        except (OSError, ValueError):
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)


def train() -> None:
    torch.manual_seed(0)
    policy = torch.nn.Linear(TOKENS, TOKENS, bias=False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    loop = Loop(Checkpoint(policy=policy, optimizer=optimizer))
    for _ in loop.epochs(1):
        for step in loop.steps(list(range(STEPS))):
            weights = policy.weight.tolist()
            answers = [ask(place, {"weights": weights, "seed": 1000 * step + row}) for row, place in enumerate(peers())]
            prompts, tokens = (
                torch.tensor([one for each in answers for one in each[name]]) for name in ("prompts", "tokens")
            )
            rewards = torch.tensor([one for each in answers for one in each["rewards"]])
            chosen = torch.log_softmax(policy(torch.eye(TOKENS)[prompts]), 1)[torch.arange(len(tokens)), tokens]
            optimizer.zero_grad()
            (-(rewards - rewards.mean()) * chosen).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loop.report(missed=1.0 - float(rewards.mean()))
            print(f"step {loop.step}: reward {float(rewards.mean()):.2f}")


def sample(question: dict[str, Any]) -> dict[str, Any]:
    """Returns prompts, sampled tokens, and 1 for each that is the prompt's."""
    chance = torch.Generator().manual_seed(question["seed"])
    prompts = torch.randint(TOKENS, (SAMPLES,), generator=chance)
    odds = torch.softmax(torch.tensor(question["weights"]).T[prompts], 1)
    tokens = torch.multinomial(odds, 1, generator=chance)[:, 0]
    rewards = (tokens == (3 * prompts + 1) % TOKENS).float()
    return {"prompts": prompts.tolist(), "tokens": tokens.tolist(), "rewards": rewards.tolist()}


def roll_out() -> None:
    """Serves until it is killed: when the job is stopped, the trainer may be in the middle of a step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.create_server(("", peers()[int(os.environ["WALRAS_ROLE_INDEX"])][1])) as listening:
        while True:
            caller, _ = listening.accept()
            with caller, caller.makefile("rw") as stream:
                if question := stream.readline():
                    print(json.dumps(sample(json.loads(question))), file=stream, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train() if sys.argv[1] == "trainer" else roll_out()

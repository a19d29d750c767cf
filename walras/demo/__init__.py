"""The demo: a whole cluster on one machine, real jobs, and a checklist at the end."""

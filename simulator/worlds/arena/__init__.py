"""Arena's simulator (EuroSys 2026): 1,280 accelerators of four types, gangs that change size and type."""

"""The same traffic without and with the handoff, over load, link and prompt length."""

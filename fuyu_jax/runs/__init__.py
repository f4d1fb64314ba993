"""Around an experiment: its settings, its folder, what it shows while it works and the report that it leaves."""

"""How controllers learn: losses, labelled states, experience, and the arms that put them together."""

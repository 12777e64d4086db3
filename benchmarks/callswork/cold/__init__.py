"""Programs of their own: from nothing to the first result on two slots. Each prints it at once."""

"""`gpulayer` in the terminal. Each group of commands is imported when it is used."""

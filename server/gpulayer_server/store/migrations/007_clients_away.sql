-- since then the client of a map is away that has not brought all of its calls; NULL: it is there, or all are
ALTER TABLE maps ADD COLUMN left_at REAL;

-- why the last session of a name ended is told to the next one's first cell, also after a restart
CREATE INDEX sessions_by_name ON sessions (owner, name, opened_at);

-- streams of lost attempts end with a mark, which is written after the commit: a start looks whether it was
CREATE INDEX attempts_lost ON attempts (id) WHERE over = 1 AND end_offset IS NULL;

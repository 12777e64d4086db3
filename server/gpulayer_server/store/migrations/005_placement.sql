-- how much of the fleet the jobs of a token's name may hold at once; NULL: as much as there is
ALTER TABLE tokens ADD COLUMN max_running INTEGER;
ALTER TABLE tokens ADD COLUMN max_devices INTEGER;

-- what a session's first cell declared is held with the session; NULL: nothing
ALTER TABLE sessions ADD COLUMN requirements BLOB;

-- Run once, by the image's start on an empty data directory, as the superuser and in the database lockdb.
-- The lock server owns its database and nothing else: it makes its own schema there. Passwords come from the environment.
\getenv password LOCKDB_PASSWORD
CREATE ROLE dlock_lock LOGIN PASSWORD :'password';
ALTER DATABASE lockdb OWNER TO dlock_lock;
REVOKE ALL ON DATABASE lockdb, postgres, template1 FROM PUBLIC;

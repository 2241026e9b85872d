-- Run once, by the image's start on an empty data directory, as the superuser and in the database paydb.
-- Three roles, none of them a superuser: the owner makes the schema (`dlock migrate`) and serves nobody; the payment resource
-- and the rail proxy get from that migration the rights that each needs, so that neither can write the other's mark.
-- Passwords come from the environment.
\getenv owner_password PAYDB_OWNER_PASSWORD
\getenv payment_password PAYDB_PAYMENT_PASSWORD
\getenv rail_password PAYDB_RAIL_PASSWORD
CREATE ROLE dlock_pay_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE dlock_payment LOGIN PASSWORD :'payment_password';
CREATE ROLE dlock_rail LOGIN PASSWORD :'rail_password';
ALTER DATABASE paydb OWNER TO dlock_pay_owner;
REVOKE ALL ON DATABASE paydb, postgres, template1 FROM PUBLIC;
GRANT CONNECT ON DATABASE paydb TO dlock_payment, dlock_rail;

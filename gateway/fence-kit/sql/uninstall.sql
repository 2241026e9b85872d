-- Takes away what install.sql made, with every mark. Tables that are still fenced keep this from happening: call
-- dlock_unfence_table for each first.
DROP FUNCTION dlock_fence_table(regclass, text, name, boolean);
DROP FUNCTION dlock_unfence_table(regclass);
DROP FUNCTION dlock_fence_row();
DROP FUNCTION dlock_fence(text, bigint, boolean);
DROP FUNCTION dlock_fence_token(text);
DROP FUNCTION dlock_fence_judge(text, bigint, boolean);
DROP TABLE dlock_fence_mark;
DROP FUNCTION dlock_fence_mark_rises();

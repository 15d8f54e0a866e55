-- The organization's feed reads events by their transaction (`events_feed`), and ends below the oldest running one.
-- An archived log leaves it. So that a follower is told what it missed, each archiving takes the organization's next
-- number and notes the last event that it deleted: who read at number n has missed it if it is later than where he was
-- and its archiving has a number above n. Only archiving locks the counter, never a write of a task.

CREATE TABLE agent_runtime.feed_archive_numbers (
    organization_id uuid   PRIMARY KEY,
    last_number     bigint NOT NULL CHECK (last_number >= 1)
);

CREATE TABLE agent_runtime.feed_archives (
    organization_id uuid   NOT NULL,
    number          bigint NOT NULL CHECK (number >= 1),
    tx              xid8   NOT NULL,
    task_id         uuid   NOT NULL,
    seq             bigint NOT NULL,
    PRIMARY KEY (organization_id, number)
);

-- Which cluster counted the transactions of the events. In another one, which restored a dump, they mean nothing.
CREATE TABLE agent_runtime.feed_home (
    system_identifier bigint PRIMARY KEY
);
INSERT INTO agent_runtime.feed_home SELECT system_identifier FROM pg_control_system();

-- Makes the events of a restored dump the first of the feed here, in the order of their logs; answers whether it did.
-- Cursors carry the cluster, so those of the old one are refused. `mandate migrate` calls it.
CREATE FUNCTION agent_runtime.settle_feed() RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
BEGIN
    IF EXISTS (SELECT FROM agent_runtime.feed_home WHERE system_identifier = here) THEN
        RETURN false;
    END IF;
    ALTER TABLE agent_runtime.events DISABLE TRIGGER events_append_only;
    UPDATE agent_runtime.events SET tx = pg_current_xact_id();
    ALTER TABLE agent_runtime.events ENABLE TRIGGER events_append_only;
    DELETE FROM agent_runtime.feed_archives;
    DELETE FROM agent_runtime.feed_home;
    INSERT INTO agent_runtime.feed_home VALUES (here);
    RETURN true;
END $$;

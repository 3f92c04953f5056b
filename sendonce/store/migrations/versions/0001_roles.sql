-- Who may call what. Business code needs the right to execute a few functions and none on a table: they run with their
-- owner's rights, on names that are written out, under a search path and settings of their own. This file comes last.

ALTER FUNCTION sendonce.enqueue SECURITY DEFINER;
ALTER FUNCTION sendonce.take_events SECURITY DEFINER;
ALTER FUNCTION sendonce.status SECURITY DEFINER;
ALTER FUNCTION sendonce.cancel SECURITY DEFINER;
ALTER FUNCTION sendonce.take_finals SECURITY DEFINER;
ALTER FUNCTION sendonce.standing SECURITY DEFINER;
ALTER FUNCTION sendonce.open_transactions SECURITY DEFINER;
-- Read when a statement of the function is first planned: a caller's setting must not change what its patterns mean.
ALTER FUNCTION sendonce.enqueue SET standard_conforming_strings = on;
ALTER FUNCTION sendonce.cancel SET standard_conforming_strings = on;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA sendonce FROM PUBLIC;

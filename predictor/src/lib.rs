//! What a job really needs, in integers with provenance.

//! The lease ledger: journal, proofs, accounts, verifier.

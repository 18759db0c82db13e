//! The words of Sublet that cross a process boundary or are stored.

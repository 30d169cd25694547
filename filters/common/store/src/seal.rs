//! The hash chain over commits.

//! tollgate: an edge gateway for OpenAI-compatible model backends that sells what it forwards.

pub mod config;

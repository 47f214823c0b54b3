//! `schedule`: a queue above a drive, in the order of a policy.

pub mod policy;

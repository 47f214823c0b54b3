//! Policies over models of drives, in virtual time.

mod poisson;
mod riders;
mod virtual_time;
mod web;

#![doc = include_str!("../README.md")]

mod single_flight;

pub use single_flight::{
    Abandoned, Generation, Handover, Joined, Leader, Rules, SingleFlight, Waiter, value,
};

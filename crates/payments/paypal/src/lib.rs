#![doc = include_str!("../README.md")]

mod certificates;
mod client;
mod environment;
mod error;
pub mod fuzz;
mod orders;
mod plans;
mod providers;
mod refund;
mod subscriptions;
mod token;
mod webhook;
mod wire;

use tollgate_service::provided;

pub use client::{Client, ClientError, Settings, Timeouts};
pub use environment::{Environment, EnvironmentError};
pub use error::{Error, ErrorKind};
pub use plans::{NewPlan, Plan};
pub use providers::PlanSubscriptions;
pub use webhook::{Resource, Verify, WebhookError, WebhookEvent};

provided! { "paypal" => [Client]; }

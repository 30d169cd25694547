//! The module `paypal`: what it provides to the modules after it.

#[path = "../../../crates/payments/purchase/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use secrecy::SecretString;
use support::process::{Disk, START};
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::ServiceIdentity;
use tollgate_module::Built;
use tollgate_money::Micros;
use tollgate_pay::{PayPalModule, PayPalSettings};
use tollgate_paypal::{Environment, Settings, Timeouts, Verify};
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::{Credits, TopUps};

fn paypal() -> PayPalSettings {
    let base_url = "https://api-m.sandbox.paypal.com";
    PayPalSettings {
        client: Settings {
            environment: Environment::at(base_url).expect("an environment"),
            client_id: SecretString::from("id"),
            client_secret: SecretString::from("secret"),
            webhook_id: None,
            verify: Verify::Locally,
            roots: None,
            brand: String::from("svc"),
            timeouts: Timeouts {
                connect: Duration::from_secs(5),
                call: Duration::from_secs(20),
            },
        },
        plan_id: None,
    }
}

/// Money may have been taken before the price was removed, or at another node that still has it: a notification of it is stored, and it is
/// captured and credited.
#[test]
fn purchases_stay_under_reconciliation_without_a_price_of_credits() {
    let (clock, _) = Clock::manual(START);
    let disk = Disk::new();
    let process = disk.start(clock.clone());
    let mut built = Built::default();
    built.services.provide(Some(paypal()));
    built.services.provide(process.store.clone());
    built.services.provide(process.ledger.clone());
    built.services.provide(process.plans.clone());
    built.services.provide(process.tasks.clone());
    built.services.provide(clock);
    built.services.provide(Entropy::system());
    built.services.provide(Credits {
        usd_per_credit: None,
        topup_url: String::from("https://svc.example/credits"),
        offer: None,
        signup_grant: Micros::ZERO,
    });
    built.services.provide(ServiceIdentity {
        name: String::from("svc"),
        base_url: String::from("https://api.svc.example"),
        root_url: String::from("https://svc.example"),
    });
    built.module(&PayPalModule).expect("it can be built");
    assert!(built.services.find::<TopUps>().is_some(), "for its events");
    assert!(built.services.find::<Mandates>().is_some());
    assert_eq!(built.leader_jobs.len(), 2, "of purchases and of mandates");
}

//! The module `pay`: the payment protocols of the plan, their sections and metrics, and the reconciliation of signed transfers.

mod mpp;
mod paypal;
mod purchase;
mod x402;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_counters::{Counters, Metric, metrics};
use tollgate_filter::{PaymentPaths, RateClasses, ServiceIdentity};
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, Snapshot,
};
use tollgate_purchase::plan::{Plan, PlanProtocols};
use tollgate_purchase::wire::Product;
use tollgate_store::{Store, reading};

use crate::settings::{PayPalSettings, RawMpp, RawX402, X402Settings};
use crate::x402::Processor;
use crate::{Pay, PaymentProtocols};

pub use paypal::PayPalModule;
pub use purchase::{PurchaseModule, plans};

metrics! {
    X402_PAYMENTS = "tollgate_x402_payments_total", Counter, ["event"],
        "Signed transfers: settled, refused, unclear for a time, dead (never moved money), stuck (needs an operator), contradicted (the chain differs from what the facilitator answered), unconfirmed (refused after submission, and no node confirms it), vanished from the chain, taken (presented first by another account).";
    X402_OPEN = "tollgate_x402_open", Gauge, [],
        "Signed transfers that may still move money. Counted every ten seconds.";
    X402_UP = "tollgate_x402_up", Gauge, [],
        "Whether offers are shown, 1 or 0: the facilitator settles what is offered, and with a node the token on the chain is that of the settings.";
}

/// The name of the module.
const NAME: &str = "pay";

/// Sale of the plan over x402 and MPP.
pub struct PayModule;

impl Module for PayModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("pay").needs(&["auth"])]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawMpp>(), SectionType::of::<RawX402>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let plan: Plan = build.get()?;
        let configured = configured_protocols(build.services())?;
        build.provide(configured);
        build.provide(Snapshot::from(product(build.services(), configured)?));
        let mpp = mpp::processor(build)?;
        let x402 = x402::processor(build)?;
        let open = Arc::new(AtomicU64::new(0));
        build.metrics(source(x402.clone(), open.clone()));
        build.background(count_open(build.get()?, open));
        if let Some(processor) = x402.clone() {
            let checked = processor.clone();
            build.background(async move { checked.run_checks().await });
            build.leader_job(move || {
                let processor = processor.clone();
                async move { processor.run().await }
            });
        }
        let protocols = PaymentProtocols::new(plan.slug, mpp, x402);
        build.provide(PaymentPaths(Pay::shares_authorization));
        build.filter("pay", move |route| {
            let filter = Pay::new(&protocols, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }

    /// Reloads the secrets of both protocols, and the form of the challenges. Product, protocols and payee are fixed.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let mpp = mpp::reload(running, settings)?;
        let x402 = x402::reload(running, settings)?;
        // The plan is fixed; the rate class is not.
        let in_force: Option<Snapshot<Product>> = running.find();
        let product = match &in_force {
            Some(_) => Some(product(settings, running.get(NAME)?)?),
            None => None,
        };
        let fixed = x402.fixed.into_iter();
        let refused = Reload::refused(fixed.chain([("payments.mpp", mpp.is_switched)]));
        Ok(refused.unwrap_or_else(|| {
            Reload::ready(move || {
                (mpp.apply)();
                (x402.apply)();
                if let (Some(in_force), Some(product)) = (in_force, product) {
                    in_force.replace(product);
                }
            })
        }))
    }
}

/// The plan in documents and answers.
fn product(services: &Services, protocols: PlanProtocols) -> Result<Product, BuildError> {
    let (plan, classes): (Plan, RateClasses) = (services.get(NAME)?, services.get(NAME)?);
    let service: ServiceIdentity = services.get(NAME)?;
    let quota = classes.quota_text(&plan.class);
    Ok(Product::new(&plan, quota, &service.base_url, protocols))
}

/// The protocols configured in the settings. A monthly plan at PayPal enables checkouts; a further secret for challenges enables MPP.
///
/// # Errors
///
/// A section of the settings is missing.
pub fn configured_protocols(services: &Services) -> Result<PlanProtocols, BuildError> {
    let x402: Option<X402Settings> = services.get(NAME)?;
    let mpp: Option<crate::mpp::Settings> = services.get(NAME)?;
    let paypal: Option<Option<PayPalSettings>> = services.find();
    let has_plan = paypal
        .flatten()
        .is_some_and(|paypal| paypal.plan_id.is_some());
    Ok(PlanProtocols {
        x402: x402.is_some(),
        mpp: mpp.is_some() && has_plan,
        paypal: has_plan,
    })
}

/// Interval at which signed transfers that may still move money are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// Counts signed transfers that may still move money: not when the metrics are read, since the database may not answer.
async fn count_open(store: Arc<dyn Store>, open: Arc<AtomicU64>) {
    loop {
        match reading(&store, |store| store.authorizations_moving()).await {
            Ok(count) => open.store(count, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "counting open transfers failed"),
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

/// The results of signed transfers; zeros without x402.
fn source(processor: Option<Processor>, open: Arc<AtomicU64>) -> tollgate_counters::Source {
    let zero = Counters::default();
    Box::new(move |samples| {
        let counters = processor.as_ref().map_or(&zero, Processor::counters);
        samples.numbers(X402_PAYMENTS, counters.values());
        samples.number(X402_OPEN, open.load(Ordering::Relaxed));
        let is_up = processor.as_ref().is_some_and(Processor::is_available);
        samples.number(X402_UP, i128::from(is_up));
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use secrecy::SecretString;
    use serde_json::json;
    use tollgate_filter::RateClass;
    use tollgate_module::{Services, check_text};
    use tollgate_testing::Facilitator;

    use super::*;
    use crate::x402::{Facilitator as _, Node as _, Operation};

    const SOLD: &str = "facilitator_url = 'https://x402.example'\npay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'\n";

    fn settings(x402: &str) -> Services {
        let mut services = Services::default();
        let x402: Option<X402Settings> =
            check_text::<RawX402>(x402, &services).expect("good settings");
        services.provide(x402);
        services.provide(None::<crate::mpp::Settings>);
        services
    }

    #[test]
    fn the_terms_of_transfers_and_whether_there_are_any_are_fixed() {
        let mut running = settings(SOLD);
        let known: Option<X402Settings> = running.get(NAME).expect("its section");
        let (_, credentials) = x402::clients(&known.expect("it is sold")).expect("clients");
        running.provide(credentials);
        let reload = |new: &str| {
            let reload = PayModule.reload(&running, &settings(new));
            reload.expect("the sections were read").apply()
        };
        assert_eq!(reload(SOLD), Ok(()));
        for (new, key) in [
            (String::new(), "payments.x402"),
            (
                SOLD.replace("x402.example", "other.example"),
                "payments.x402.facilitator_url",
            ),
            (
                SOLD.replace(
                    "0x90F79bf6EB2c4f870365E785982E1f101E93b906",
                    "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
                ),
                "payments.x402.pay_to",
            ),
            (
                format!("{SOLD}rpc_url = 'https://node.example'"),
                "payments.x402.rpc_url",
            ),
            (
                format!("{SOLD}max_timeout_secs = 60"),
                "payments.x402.max_timeout_secs",
            ),
        ] {
            assert_eq!(reload(&new), Err(vec![key]), "{new}");
        }
    }

    #[test]
    fn a_reload_of_the_rate_classes_changes_what_offers_state() {
        let with = |requests: u32| {
            let mut services = settings(SOLD);
            services.provide(Plan {
                product: "svc-pro-monthly".into(),
                slug: "svc-pro".into(),
                name: "Pro".into(),
                class: "pro".into(),
                monthly_credits: tollgate_money::Micros::ZERO,
                renewal_days: 7,
                device_slots: None,
                computer_use_tasks: None,
                features: Arc::from([]),
            });
            services.provide(ServiceIdentity {
                name: "svc".to_owned(),
                base_url: "https://svc.example".to_owned(),
                root_url: "https://svc.example".to_owned(),
            });
            services.provide(RateClasses(Arc::from([RateClass {
                name: "pro".into(),
                requests,
                window_secs: 60,
                tokens: None,
                concurrent: None,
            }])));
            services
        };
        let mut running = with(600);
        let sold = Snapshot::from(product(&running, PlanProtocols::ALL).expect("a product"));
        running.provide(sold.clone());
        running.provide(PlanProtocols::ALL);
        let reload = PayModule.reload(&running, &with(1_200)).expect("good");
        assert!(sold.load().includes().ends_with("600 requests a minute"));
        assert_eq!(reload.apply(), Ok(()));
        assert!(sold.load().includes().ends_with("1,200 requests a minute"));
    }

    #[tokio::test]
    async fn calls_after_a_reload_have_the_new_token_and_go_to_the_new_address_of_the_node() {
        let stand_in = Facilitator::start().await;
        let with = |token: &str, node: &str| {
            let text = SOLD.replace("https://x402.example", &stand_in.url());
            let mut services = settings(&format!("{text}rpc_url = '{node}'\n"));
            let known: Option<X402Settings> = services.get(NAME).expect("its section");
            let mut known = known.expect("it is sold");
            known.facilitator_token = Some(SecretString::from(token.to_owned()));
            services.provide(Some(known.clone()));
            (known, services)
        };
        let (known, mut running) = with("one", "http://127.0.0.1:9");
        let (facilitator, credentials) = x402::clients(&known).expect("clients");
        let node = credentials.node.clone().expect("a node");
        running.provide(credentials);
        let supported = async || {
            let answer = facilitator.call(Operation::Supported, Bytes::new()).await;
            answer.expect("an answer").status
        };
        let chain = async || {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []});
            node.call(&call).await.is_ok()
        };
        stand_in.want_bearer("two");
        assert_eq!((supported().await, chain().await), (401, false));
        let (_, new) = with("two", &stand_in.rpc_url());
        let reload = PayModule.reload(&running, &new).expect("it was built");
        assert_eq!(
            (supported().await, chain().await),
            (401, false),
            "nothing has changed before the call"
        );
        assert_eq!(reload.apply(), Ok(()));
        assert_eq!((supported().await, chain().await), (200, true));
    }
}

//! `tollgate paypal setup`: creates the product and the plan that buyers subscribe to, once.

use std::io::Write;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tollgate_clock::Clock;
use tollgate_filter::BrandName;
use tollgate_pay::PayPalSettings;
use tollgate_paypal::{Client, NewPlan};
use tollgate_purchase::key_of;
use tollgate_purchase::plan::{PRICE, Plan};

use super::exit_code::SUCCESS;
use super::output::Output;
use crate::args::PayPalCommand;
use crate::config::Settings;

/// The product and the plan at PayPal.
#[derive(Serialize)]
struct Found {
    product_id: String,
    plan_id: String,
    /// Whether this run created the plan.
    made: bool,
}

pub(super) fn run(
    command: PayPalCommand,
    settings: &Settings,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let PayPalCommand::Setup = command;
    let known: Option<PayPalSettings> = settings.sections.find().flatten();
    let Some(known) = known else {
        bail!(
            "the settings have no PayPal credentials; set `client_id_env` and `client_secret_env` in `[payments.paypal]`"
        );
    };
    let clock = Clock::system();
    let client = Client::new(known.client, clock.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start; is the limit of processes or files too low?")?;
    let plan: Plan = settings
        .sections
        .find()
        .context("this gateway has no section `[plan]`")?;
    let BrandName(brand) = settings
        .sections
        .find()
        .context("this gateway has no section `[brand]`")?;
    let name = format!("{brand} {}", plan.name);
    let found = runtime.block_on(set_up(&client, (&plan.product, &name), &clock))?;
    out.show(&found, |out| print_text(&found, &known.plan_id, out))?;
    Ok(SUCCESS)
}

fn print_text(found: &Found, named: &Option<String>, out: &mut dyn Write) -> anyhow::Result<()> {
    let done = match found.made {
        true => "created",
        false => "exists",
    };
    writeln!(out, "product  {}", found.product_id)?;
    writeln!(
        out,
        "plan     {}  {PRICE} USD each month, {done}",
        found.plan_id
    )?;
    if named.as_deref() == Some(&*found.plan_id) {
        writeln!(out, "\nThe settings already name this plan.")?;
    } else {
        writeln!(
            out,
            "\nAdd to the settings:\n\n[payments.paypal]\nplan_id = \"{}\"",
            found.plan_id
        )?;
    }
    Ok(())
}

/// Finds the plan or creates the plan. A plan with any other price stays unchanged.
async fn set_up(
    client: &Client,
    (product, name): (&str, &str),
    clock: &Clock,
) -> anyhow::Result<Found> {
    // The key stays equal for an hour: a retry after a lost answer receives the created object.
    let hour = clock.now().as_secs() / 3_600;
    let (environment, hour) = (client.environment().to_string(), hour.to_string());
    let key = |what: &str| key_of(&["tollgate", &environment, product, what, &hour]);
    client
        .ensure_product(product, name, &key("product"))
        .await
        .context("PayPal did not accept the product")?;
    let known = client.active_plans(product);
    for id in known.await.context("PayPal did not list its plans")? {
        let plan = client
            .plan(&id)
            .await
            .context("PayPal did not return a plan")?;
        if plan.is_active && plan.monthly == Some(PRICE) {
            return Ok(Found {
                product_id: product.to_owned(),
                plan_id: plan.id,
                made: false,
            });
        }
    }
    let new = NewPlan {
        product,
        name,
        price: PRICE,
        key: &key("plan"),
    };
    let id = client
        .create_plan(&new)
        .await
        .context("PayPal did not create the plan")?;
    let plan = client
        .plan(&id)
        .await
        .context("PayPal did not return the plan")?;
    if !plan.is_active || plan.monthly != Some(PRICE) {
        bail!(
            "PayPal created plan `{id}`, but it is not active or does not charge {PRICE} USD each month; check it in PayPal's dashboard"
        );
    }
    Ok(Found {
        product_id: product.to_owned(),
        plan_id: id,
        made: true,
    })
}

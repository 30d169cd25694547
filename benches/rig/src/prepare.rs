//! Preparation of a database with the accounts and keys that a measurement needs, in one bulk write.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{Resources, Scopes};
use tollgate_identity::{Form, NewAccount, NewKey, create_account, create_key};
use tollgate_ledger::{Credit, Ledger};
use tollgate_money::{Micros, OperationId};
use tollgate_store::{RootSecret, Store, sqlite};

/// Accounts being made at once: as many as fit into a commit, so that commits are few.
const AT_ONCE: usize = 512;

/// Credits of each account.
const CREDITS: i64 = 1_000_000;

/// What to make.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The database, which must not be in use.
    #[arg(long)]
    database: PathBuf,
    /// How many accounts, each with one key and credits.
    #[arg(long, default_value_t = 1)]
    accounts: usize,
}

/// Makes the accounts and prints the key of one of them.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let mut settings = sqlite::Options::new(clock.now(), RootSecret(entropy.bytes()));
    settings.durability = sqlite::Durability::Process;
    let store = sqlite::open(&options.database, settings)?;
    let (ledger, _) = Ledger::start(store.clone(), clock.now())?;
    let mut tasks = JoinSet::new();
    let mut key = None;
    for _ in 0..options.accounts {
        if tasks.len() >= AT_ONCE {
            key = joined(&mut tasks).await?.or(key);
        }
        tasks.spawn(one(
            store.clone(),
            ledger.clone(),
            clock.clone(),
            entropy.clone(),
        ));
    }
    while !tasks.is_empty() {
        key = joined(&mut tasks).await?.or(key);
    }
    drop(ledger);
    store.close();
    println!("{}", key.context("no account was asked for")?);
    Ok(())
}

async fn joined(tasks: &mut JoinSet<Result<String>>) -> Result<Option<String>> {
    tasks.join_next().await.transpose()?.transpose()
}

async fn one(
    store: Arc<dyn Store>,
    ledger: Ledger,
    clock: Clock,
    entropy: Entropy,
) -> Result<String> {
    let now = clock.now();
    let account = NewAccount {
        logins: Vec::new(),
        class: Arc::from("free"),
        credit_limit: Micros::ZERO,
        cache_scope: tollgate_store::CacheScope::Shared,
        created_at: now,
    };
    let account = create_account(&*store, account, |out| entropy.fill(out)).await?;
    let credit = Credit {
        operation: OperationId::generate(clock.now(), &entropy),
        account,
        amount: Micros::from_credits(CREDITS).context("a million credits fit")?,
        reference: Arc::from("bench"),
        at: clock.now(),
    };
    ledger.grant(credit).await?;
    let key = NewKey {
        account,
        label: "bench".to_owned(),
        resources: Resources::API.bits(),
        scopes: Scopes::API.bits(),
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: now,
    };
    let key = create_key(&*store, &Form::api_key("svc"), key, |out| entropy.fill(out)).await?;
    Ok(key.secret.expose_secret().to_owned())
}

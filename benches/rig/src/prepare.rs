//! Preparation of a database with the accounts and keys that a measurement needs, in one bulk write.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::{Resources, Scopes};
use tollgate_identity::{Form, NewAccount, NewKey, create_account, create_key};
use tollgate_ledger::{Credit, Ledger};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, Endpoint, Part, RootSecret, Store, UnitOfWork, UsageFlags, UsageRecord, commit,
    sqlite,
};

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
    /// Writes the keys of all accounts to a file, one a line, in place of printing one.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Makes one more account, without credits, and writes its key to a file.
    #[arg(long)]
    poor_key: Option<PathBuf>,
    /// Past requests of one more account, over the last 90 days.
    #[arg(long, default_value_t = 0)]
    usage: u32,
}

/// Makes the accounts and prints the key of one of them.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let mut settings = sqlite::Options::new(clock.now(), RootSecret(entropy.bytes()));
    settings.durability = sqlite::Durability::Process;
    let store = sqlite::open(&options.database, settings)?;
    let (ledger, _) = Ledger::start(store.clone(), clock.now())?;
    let mut tasks = JoinSet::new();
    let mut keys = Vec::new();
    let credits = Micros::from_credits(CREDITS).context("a million credits fit")?;
    let make = |credits| {
        one(
            store.clone(),
            ledger.clone(),
            clock.clone(),
            entropy.clone(),
            credits,
        )
    };
    for _ in 0..options.accounts {
        if tasks.len() >= AT_ONCE {
            keys.push(joined(&mut tasks).await?);
        }
        tasks.spawn(make(credits));
    }
    while !tasks.is_empty() {
        keys.push(joined(&mut tasks).await?);
    }
    if let Some(file) = &options.poor_key {
        std::fs::write(file, make(Micros::ZERO).await?.1)?;
    }
    if options.usage > 0 {
        let (account, _) = make(credits).await?;
        consume(&*store, account, clock.now(), options.usage, &entropy).await?;
    }
    drop(ledger);
    store.close();
    match &options.keys {
        Some(file) => {
            let lines: String = keys.iter().map(|(_, key)| format!("{key}\n")).collect();
            std::fs::write(file, lines)?;
        }
        None => println!("{}", keys.first().context("no account was asked for")?.1),
    }
    Ok(())
}

async fn joined(tasks: &mut JoinSet<Result<(AccountId, String)>>) -> Result<(AccountId, String)> {
    tasks.join_next().await.context("a task")??
}

/// Charges of requests, spread evenly over the last 90 days.
async fn consume(
    store: &dyn Store,
    account: AccountId,
    now: Timestamp,
    requests: u32,
    entropy: &Entropy,
) -> Result<()> {
    const PERIOD: Duration = Duration::from_secs(90 * 86_400);
    const UNIT: u32 = 1000;
    let model: Arc<str> = Arc::from("bench");
    for first in (0..requests).step_by(UNIT as usize) {
        let charges = (first..requests.min(first + UNIT)).map(|number| {
            let at = now - PERIOD + Duration::from_secs(1) + PERIOD / requests * number;
            Part::Ledger(LedgerPart::Charge {
                operation: OperationId::generate(at, entropy),
                account,
                charged: Micros::new(100),
                written_off: Micros::ZERO,
                price_version: None,
                usage: UsageRecord {
                    credential: None,
                    endpoint: Endpoint::Chat,
                    model: model.clone(),
                    upstream: Some(model.clone()),
                    prompt_tokens: 100,
                    completion_tokens: 200,
                    flags: UsageFlags::NONE,
                    http_status: 200,
                    ttfb_us: Some(200_000),
                    total_us: Some(900_000),
                },
                at,
            })
        });
        commit(store, UnitOfWork::of_all(charges, Admission::Always)).await?;
    }
    Ok(())
}

async fn one(
    store: Arc<dyn Store>,
    ledger: Ledger,
    clock: Clock,
    entropy: Entropy,
    credits: Micros,
) -> Result<(AccountId, String)> {
    let now = clock.now();
    let account = NewAccount {
        logins: Vec::new(),
        class: Arc::from("free"),
        credit_limit: Micros::ZERO,
        cache_scope: tollgate_store::CacheScope::Shared,
        created_at: now,
    };
    let account = create_account(&*store, account, |out| entropy.fill(out)).await?;
    if credits.is_positive() {
        let credit = Credit {
            operation: OperationId::generate(clock.now(), &entropy),
            account,
            amount: credits,
            reference: Arc::from("bench"),
            at: clock.now(),
        };
        ledger.grant(credit).await?;
    }
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
    Ok((account, key.secret.expose_secret().to_owned()))
}

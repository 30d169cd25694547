//! Definition of the command line (clap). The comments are the `--help` texts.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{Args as Flags, Parser, Subcommand};
use clap_complete::Shell;

/// An edge gateway that sells access to OpenAI-compatible model backends.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version = crate::release::DESCRIPTION, about, propagate_version = true)]
pub struct Args {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// The settings file. Default: the value of the environment variable TOLLGATE_CONFIG.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one line of JSON instead of text. Errors are text on the standard error output all the same.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run a self-contained demo gateway, without settings. All its files are removed when it ends.
    Demo {
        /// The port for HTTP. HTTPS uses the next one. 0 selects two free ports.
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
    /// Run the gateway until SIGTERM or SIGINT.
    Serve,
    /// Validate the settings and print all errors and warnings. Exit code 0 if they are valid, else 1.
    Check,
    /// Check this machine and every other party that the settings name: durable writes, limits, clock, DNS, certificates, model providers,
    /// Redis, PayPal's plan and the x402 facilitator. The gateway may be running; nothing is changed. Exit code 1 if a check has failed.
    Doctor,
    /// Print the JSON Schema of the settings.
    Schema,
    /// Print the OpenAPI document of the configured service, or of the admin API, which needs no settings.
    #[command(name = "openapi")]
    OpenApi {
        /// Print that of the admin API.
        #[arg(long)]
        admin: bool,
    },
    /// Create, show and change accounts.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Create, list and revoke API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Grant credits and show balances.
    #[command(subcommand)]
    Credits(CreditsCommand),
    /// List and close signed transfers (x402) whose outcome is not proved.
    #[command(subcommand)]
    Payment(PaymentCommand),
    /// Set up the product and the plan at PayPal.
    #[command(subcommand, name = "paypal")]
    PayPal(PayPalCommand),
    /// Show the health of the model providers, as the running gateway sees it.
    Providers,
    /// Reload the settings of the running gateway: all of them, or none and an error.
    Reload,
    /// Replace the running gateway by a new process without interruption: it takes over sockets and store, and the earlier process ends its
    /// open requests. The settings are read again, all of them.
    Upgrade {
        /// The program to start. Default: the file that the running process was started from.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// Compare the settings file with the running gateway.
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Show and purge the response cache of the running gateway.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show the gateways that work on the PostgreSQL database, and what ended ones have left. Needs no running gateway.
    Nodes {
        /// Default: show them.
        #[command(subcommand)]
        command: Option<NodesCommand>,
    },
    /// Show the usage of an account in tokens and credits, by day (UTC) and model.
    Usage {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// The first day, such as 2026-01-31. Default: 30 days before the end of the last day.
        #[arg(long, value_name = "DAY")]
        from: Option<String>,
        /// The last day. Default: today.
        #[arg(long, value_name = "DAY")]
        to: Option<String>,
    },
    /// Verify the ledger: journal, balances and holds. Exit code 0 if it is consistent, 1 if not, 2 if the audit could not be completed
    /// or the database has lost commits.
    Audit {
        /// Replay the export files of `tollgate retention` in this folder too, and compare them with what the database has carried over.
        #[arg(long, value_name = "FOLDER")]
        exports: Option<PathBuf>,
        /// Rebuild balances, open holds and account histories from the journal first. The gateway must be stopped.
        #[arg(long)]
        fix_derived: bool,
        /// Progress.
        #[command(flatten)]
        progress: ShowProgress,
    },
    /// List what operators have changed, newest first: by commands, and by the admin API. `tollgate audit` verifies the list.
    AuditLog(AuditLogArgs),
    /// Show how a damaged journal would be repaired, and which commits are lost; with --apply, repair it. Exit codes as for audit.
    Repair {
        /// Repair the database, after a copy of it was made. The gateway must be stopped.
        #[arg(long)]
        apply: bool,
        /// Go on without commits that the database has lost, by the record of the last one (`FILE.committed`): after the loss of its log
        /// (`FILE-wal`), or the restore of a backup. The gateway must be stopped.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Copy the database to a file, or to a folder of verified backups of which the newest are kept. The gateway may be running.
    Backup {
        /// Where to.
        #[command(flatten)]
        target: BackupTarget,
        /// Progress.
        #[command(flatten)]
        progress: ShowProgress,
    },
    /// Show what a restore of a backup would undo: keys, app access and suspensions that would be as before, payments that it does not know, and
    /// returned payments that would count again. Needs the newer database; the gateway may be running.
    Compare {
        /// The backup: an SQLite file, or the `postgres://` address of the database that a backup was restored into.
        backup: String,
    },
    /// Copy the accounts and the ledger from an SQLite file into a PostgreSQL database without a store. No gateway may have either. An
    /// attempt that was interrupted is continued. The file gets the ending `.migrated` once the audit of the copy is clean and its last seals are
    /// the same.
    Migrate {
        /// The store to copy: `sqlite:` and the path of a file.
        #[arg(long, value_name = "URL")]
        from: String,
        /// The database: `postgres://` and its address. Default: that of `store.url`. The password is that of the settings.
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        /// Progress.
        #[command(flatten)]
        progress: ShowProgress,
    },
    /// Export the months of the journal that the settings do not keep (`store.keep_months`) to files, and remove them: balances, credits and
    /// the usage of each day stay. The gateway may be running. Of several, the leader does it.
    Retention {
        /// Show what would be exported, and change nothing.
        #[arg(long)]
        dry_run: bool,
        /// Progress.
        #[command(flatten)]
        progress: ShowProgress,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages, one for each command, into a folder.
    Man {
        /// The folder, such as /usr/local/share/man/man1. It must exist.
        folder: PathBuf,
    },
}

/// `tollgate audit-log`
#[derive(Clone, Debug, Flags)]
pub struct AuditLogArgs {
    /// Only the acts of one actor: "token NAME", "uid NUMBER" for a user of the machine, "signal SIGHUP", "signal SIGUSR2", "file watch", or "holder of the key".
    #[arg(long, value_name = "ACTOR")]
    pub actor: Option<String>,
    /// Only the acts on one account, key or payment.
    #[arg(long, value_name = "ID")]
    pub subject: Option<String>,
    /// The number of acts.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub limit: usize,
}

/// `tollgate nodes`
#[derive(Clone, Debug, Subcommand)]
pub enum NodesCommand {
    /// Recover a node whose process has ended: release its holds and return its credit to the accounts. A node that runs does this for others
    /// a minute after the end of their lease, with `store.spool` 15 minutes (`store.orphan_grace_secs`).
    Recover {
        /// The node's name, or its number.
        name: String,
    },
}

/// `tollgate settings`
#[derive(Clone, Debug, Subcommand)]
pub enum SettingsCommand {
    /// Show the settings that a reload would change, and those that need `tollgate upgrade`. Exit code 0 without any of the latter, else 1.
    Diff,
}

/// `tollgate paypal`
#[derive(Clone, Debug, Subcommand)]
pub enum PayPalCommand {
    /// Create the product and the plan that buyers subscribe to, unless they exist, and print the setting to add.
    Setup,
}

/// Where a backup goes.
#[derive(Clone, Debug, Flags)]
pub struct BackupTarget {
    /// The file to create.
    #[arg(required_unless_present = "dir")]
    pub file: Option<PathBuf>,
    /// Replace the file if it exists, once the copy is complete.
    #[arg(long, requires = "file")]
    pub replace: bool,
    /// Create a file with the time (UTC) in its name in this folder, verify it (every page, and the ledger by an audit), and then remove the
    /// oldest of the backups that were made this way.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["file", "replace"])]
    pub dir: Option<PathBuf>,
    /// How many backups to keep in the folder. Default: 7.
    #[arg(long, value_name = "N", requires = "dir", conflicts_with = "file")]
    pub keep: Option<NonZeroU16>,
}

/// Whether progress is shown.
#[derive(Clone, Copy, Debug, Flags)]
pub struct ShowProgress {
    /// Show progress on the standard error output also when that is no terminal.
    #[arg(long)]
    pub progress: bool,
}

/// The id of an account.
#[derive(Clone, Debug, Flags)]
pub struct Account {
    /// The account's id: acct_ and 32 hex digits.
    #[arg(long, value_name = "ID")]
    pub account: String,
}

/// `tollgate account`
#[derive(Clone, Debug, Subcommand)]
pub enum AccountCommand {
    /// Create an account and print its id.
    Create {
        /// An e-mail address for sign-in. May be repeated.
        #[arg(long, value_name = "ADDRESS")]
        email: Vec<String>,
        /// A phone number for sign-in, such as +4930123456. May be repeated.
        #[arg(long, value_name = "NUMBER")]
        phone: Vec<String>,
        /// The rate class. Default: free.
        #[arg(long, value_name = "NAME")]
        class: Option<String>,
        /// Which accounts share its cached responses: shared (all that share, the default), account (only itself) or off (no caching).
        #[arg(long, value_name = "SCOPE")]
        cache_scope: Option<String>,
    },
    /// Show one account, found by id, e-mail address or phone number.
    Show {
        /// The account's id.
        #[arg(long, value_name = "ID", required_unless_present_any = ["email", "phone"])]
        account: Option<String>,
        /// An e-mail address for sign-in.
        #[arg(long, value_name = "ADDRESS", conflicts_with = "account")]
        email: Option<String>,
        /// A phone number for sign-in.
        #[arg(long, value_name = "NUMBER", conflicts_with_all = ["account", "email"])]
        phone: Option<String>,
    },
    /// List all accounts.
    List,
    /// Suspend an account: all its credentials are refused from the next request on.
    Suspend {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// End the suspension.
        #[arg(long)]
        lift: bool,
        /// Cancel the account's subscription at PayPal, too.
        #[arg(long, conflicts_with = "lift")]
        end_plan: bool,
    },
    /// Set which accounts share the cached responses of an account.
    CacheScope {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// shared (with all accounts that share), account (only itself) or off (responses are neither stored nor served from the cache).
        #[arg(long, value_name = "SCOPE")]
        cache_scope: String,
    },
    /// Print all data of an account as JSON: itself, keys without secrets, ledger entries, usage, purchases, apps with access, and sessions.
    Export {
        /// The account.
        #[command(flatten)]
        account: Account,
    },
    /// Delete an account: keys, access tokens and sessions end, and addresses and names are removed, for good. Its ledger entries and payments
    /// stay, under its id alone. Refused while it has credit, requests, or a subscription that may be charged.
    Delete {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// Forfeit the credit that it has: a correction takes it.
        #[arg(long)]
        forfeit: bool,
    },
    /// Change the rate class of an account.
    Class {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// The rate class.
        #[arg(long, value_name = "NAME")]
        class: String,
    },
}

/// `tollgate key`
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print its secret, which is shown only once.
    Create {
        /// The account that pays.
        #[command(flatten)]
        account: Account,
        /// The name of the key.
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// The scopes, separated by commas. Default: all scopes of the API.
        #[arg(long, value_name = "SCOPES", value_delimiter = ',')]
        scopes: Vec<String>,
        /// The models that it may use, separated by commas. Default: all.
        #[arg(long, value_name = "MODELS", value_delimiter = ',')]
        models: Vec<String>,
        /// The spending cap in credits, such as 10 or 0.25. Default: none.
        #[arg(long, value_name = "CREDITS")]
        spend_max: Option<String>,
        /// The period of the spending cap: total, or month (reset at the start of each calendar month, UTC). Default: total.
        #[arg(long, value_name = "PERIOD", requires = "spend_max")]
        spend_period: Option<String>,
        /// The expiry: a day such as 2027-01-31, a time such as 2027-01-31T12:00:00Z, or days from now such as 90d. Default: never.
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
    },
    /// List the keys of an account, without their secrets.
    List {
        /// The account.
        #[command(flatten)]
        account: Account,
    },
    /// Show the key with a secret, and its account; also a revoked or expired key.
    Find {
        /// The file with the secret, or - for the standard input: a secret on the command line would stand in the shell's history.
        #[arg(long, value_name = "FILE")]
        secret_file: PathBuf,
    },
    /// Revoke a key: it is refused from the next request on.
    #[command(group(clap::ArgGroup::new("which").required(true).args(["key", "secret_file"])))]
    Revoke {
        /// The key's id: key_ and 32 hex digits.
        #[arg(long, value_name = "ID")]
        key: Option<String>,
        /// The file with the key's secret, or - for the standard input.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
}

/// `tollgate cache`
#[derive(Clone, Debug, Subcommand)]
pub enum CacheCommand {
    /// Show the size of the cache and its counters since the start.
    Show,
    /// Remove cached responses.
    #[command(group = clap::ArgGroup::new("what").required(true))]
    Purge {
        /// Remove one: the cache_entry_id of a response.
        #[arg(long, value_name = "ID", group = "what")]
        id: Option<String>,
        /// Remove all responses of a model.
        #[arg(long, value_name = "NAME", group = "what")]
        model: Option<String>,
        /// Remove all responses.
        #[arg(long, group = "what")]
        all: bool,
    },
}

/// `tollgate payment`
#[derive(Clone, Debug, Subcommand)]
pub enum PaymentCommand {
    /// List the payments whose outcome is not proved: those that may still move money, each of which blocks further payments of its
    /// account, and those that the facilitator refused after submission, where no node confirms the refusal.
    List,
    /// Record the outcome of a payment as shown by a block explorer, where the gateway cannot read the chain.
    #[command(group(clap::ArgGroup::new("verdict").required(true)))]
    Close {
        /// The payment's id, as printed by `tollgate payment list`.
        payment: String,
        /// The payment was made in this transaction: the plan is activated.
        #[arg(long, value_name = "HASH", group = "verdict")]
        paid: Option<String>,
        /// The payment moved no money. Refused until the chain can no longer accept it.
        #[arg(long, group = "verdict")]
        not_moved: bool,
        /// Allow a transaction that has already paid for another payment. It must contain a separate transfer for this one.
        #[arg(long, requires = "paid")]
        shared_transaction: bool,
    },
}

/// `tollgate credits`
#[derive(Clone, Debug, Subcommand)]
pub enum CreditsCommand {
    /// Grant credits. Idempotent: a repeat with the same reference changes nothing.
    Grant {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// The amount in credits, such as 10 or 0.25; at most six decimal places.
        #[arg(long, value_name = "DECIMAL")]
        amount: String,
        /// The idempotency key, such as an invoice number.
        #[arg(long, value_name = "TEXT")]
        reference: String,
    },
    /// Correct a balance: add credits, or remove them. Idempotent like grant.
    Correct {
        /// The account.
        #[command(flatten)]
        account: Account,
        /// The amount in credits, such as 10 or -0.25; at most six decimal places.
        #[arg(long, value_name = "DECIMAL", allow_hyphen_values = true)]
        amount: String,
        /// The idempotency key, such as the number of a complaint.
        #[arg(long, value_name = "TEXT")]
        reference: String,
    },
    /// Show the balance of an account and its latest ledger entries.
    Show {
        /// The account.
        #[command(flatten)]
        account: Account,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn config_is_accepted_before_and_after_the_command() {
        for line in [
            ["tollgate", "--config", "a.toml", "serve"],
            ["tollgate", "serve", "--config", "a.toml"],
        ] {
            let args = Args::try_parse_from(line).expect("it reads");
            assert_eq!(args.config, Some(PathBuf::from("a.toml")));
        }
    }
}

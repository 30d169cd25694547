//! The command line.

use std::path::PathBuf;

use clap::{Args as Flags, Parser, Subcommand};
use clap_complete::Shell;

/// An edge gateway for OpenAI-compatible model backends that sells what it forwards.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version, about, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// The settings file; by default what TOLLGATE_CONFIG names.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run a self-contained gateway to try: needs no settings and leaves nothing behind.
    Demo {
        /// The port for HTTP; HTTPS has the next one, 0 takes free ones.
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// Print one line of JSON once everything is ready.
        #[arg(long)]
        json: bool,
    },
    /// Run the gateway.
    Serve,
    /// Check the settings and show everything that is wrong with them.
    Check {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of the settings.
    Schema,
    /// Print the OpenAPI document of the service that the settings describe.
    #[command(name = "openapi")]
    OpenApi,
    /// Make, show and change accounts.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Make, show and revoke API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Give and show credits.
    #[command(subcommand)]
    Credits(CreditsCommand),
    /// Show and close signed transfers whose outcome is not proved (x402).
    #[command(subcommand)]
    Payment(PaymentCommand),
    /// Set up what is needed at PayPal.
    #[command(subcommand, name = "paypal")]
    PayPal(PayPalCommand),
    /// Show how the model providers of the gateway that runs are.
    Providers {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show and empty the cache of the gateway that runs.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show what an account spent, by day (UTC) and model.
    Usage {
        /// Whose.
        #[command(flatten)]
        account: Account,
        /// The first day, such as 2026-01-31; by default 30 days ago.
        #[arg(long, value_name = "DAY")]
        from: Option<String>,
        /// The last day; by default today.
        #[arg(long, value_name = "DAY")]
        to: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prove that the books balance; exits with 0 when they do, 1 when not, 2 when that could not be found out.
    Audit {
        /// Make balances, open holds and what owners see anew from the journal. The gateway must be stopped.
        #[arg(long)]
        fix_derived: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what of a damaged journal can be kept, and with `--apply` keep that; exits as `audit` does.
    Repair {
        /// Repair the books, after a copy of them was made. The gateway must be stopped.
        #[arg(long)]
        apply: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Copy the store to a new file, while the gateway runs or not.
    Backup {
        /// The file to make.
        file: PathBuf,
    },
    /// Print a script that completes commands in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Commands about PayPal.
#[derive(Clone, Debug, Subcommand)]
pub enum PayPalCommand {
    /// Make the product and the plan that buyers subscribe to, or find them, and print what belongs into the settings.
    Setup {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// An account, by its id.
#[derive(Clone, Debug, Flags)]
pub struct Account {
    /// The account's id: acct_ and 32 hex digits.
    #[arg(long, value_name = "ID")]
    pub account: String,
}

/// `tollgate account`
#[derive(Clone, Debug, Subcommand)]
pub enum AccountCommand {
    /// Make an account and print its id.
    Create {
        /// An e-mail address that will sign in to it; may stand several times.
        #[arg(long, value_name = "ADDRESS")]
        email: Vec<String>,
        /// A phone number that will sign in to it, such as +4930123456; may stand several times.
        #[arg(long, value_name = "NUMBER")]
        phone: Vec<String>,
        /// Its rate class; by default free.
        #[arg(long, value_name = "NAME")]
        class: Option<String>,
        /// With whom it shares stored answers: shared (the default), account (nobody) or off (nothing is stored).
        #[arg(long, value_name = "SCOPE")]
        cache_scope: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one account: by id, e-mail address or phone number.
    Show {
        /// The account's id.
        #[arg(long, value_name = "ID", required_unless_present_any = ["email", "phone"])]
        account: Option<String>,
        /// An e-mail address that signs in to it.
        #[arg(long, value_name = "ADDRESS", conflicts_with = "account")]
        email: Option<String>,
        /// A phone number that signs in to it.
        #[arg(long, value_name = "NUMBER", conflicts_with_all = ["account", "email"])]
        phone: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List all accounts.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Bar an account: its keys are refused from the next request on.
    Suspend {
        /// Which.
        #[command(flatten)]
        account: Account,
        /// Let it in again.
        #[arg(long)]
        lift: bool,
        /// Have PayPal charge nothing more for its plan.
        #[arg(long, conflicts_with = "lift")]
        end_plan: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say with whom an account shares stored answers.
    CacheScope {
        /// Which.
        #[command(flatten)]
        account: Account,
        /// shared (with all that share), account (with nobody) or off (nothing is stored, nothing stored is given).
        #[arg(long, value_name = "SCOPE")]
        cache_scope: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put an account in another rate class.
    Class {
        /// Which.
        #[command(flatten)]
        account: Account,
        /// The class.
        #[arg(long, value_name = "NAME")]
        class: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `tollgate key`
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and print its secret, this once.
    Create {
        /// Who pays.
        #[command(flatten)]
        account: Account,
        /// What its owner calls it.
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// Its scopes, separated by commas; by default all of the API.
        #[arg(long, value_name = "SCOPES", value_delimiter = ',')]
        scopes: Vec<String>,
        /// The only models it may use, separated by commas; by default all.
        #[arg(long, value_name = "MODELS", value_delimiter = ',')]
        models: Vec<String>,
        /// The most credits it may spend; by default as many as its account has.
        #[arg(long, value_name = "CREDITS")]
        spend_max: Option<String>,
        /// Over which time: `total`, or `month`, which counts anew in each calendar month (UTC). By default `total`.
        #[arg(long, value_name = "PERIOD", requires = "spend_max")]
        spend_period: Option<String>,
        /// When it ends: a day such as 2027-01-31, a time such as 2027-01-31T12:00:00Z, or days from now such as 90d.
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the keys of an account, without their secrets.
    List {
        /// Whose.
        #[command(flatten)]
        account: Account,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key: it is refused from the next request on.
    Revoke {
        /// The key's id: key_ and 32 hex digits.
        #[arg(long, value_name = "ID")]
        key: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `tollgate cache`
#[derive(Clone, Debug, Subcommand)]
pub enum CacheCommand {
    /// Show how full it is and what it has done since the start.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove stored answers.
    #[command(group = clap::ArgGroup::new("what").required(true))]
    Purge {
        /// One of them: the cache_entry_id of an answer.
        #[arg(long, value_name = "ID", group = "what")]
        id: Option<String>,
        /// All of a model.
        #[arg(long, value_name = "NAME", group = "what")]
        model: Option<String>,
        /// All.
        #[arg(long, group = "what")]
        all: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `tollgate payment`
#[derive(Clone, Debug, Subcommand)]
pub enum PaymentCommand {
    /// List the payments whose outcome is not proved: those that may still move money, each of which keeps its account from paying by any
    /// route, and those that the facilitator refused after they were submitted, where no node confirms that.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Close one with what an explorer of the chain shows, where the gateway cannot read the chain.
    #[command(group(clap::ArgGroup::new("verdict").required(true)))]
    Close {
        /// Its name, as the list has it.
        payment: String,
        /// The transaction in which it has paid the price: the plan is given for it.
        #[arg(long, value_name = "HASH", group = "verdict")]
        paid: Option<String>,
        /// It has moved nothing: not before the chain takes it no more.
        #[arg(long, group = "verdict")]
        not_moved: bool,
        /// The transaction has paid for another payment already, and has a transfer of its own for this one.
        #[arg(long, requires = "paid")]
        shared_transaction: bool,
    },
}

/// `tollgate credits`
#[derive(Clone, Debug, Subcommand)]
pub enum CreditsCommand {
    /// Give credits. Repeated with the same reference it changes nothing.
    Grant {
        /// To whom.
        #[command(flatten)]
        account: Account,
        /// How many, such as 10 or 0.25; at most six places.
        #[arg(long, value_name = "DECIMAL")]
        amount: String,
        /// What makes it idempotent, such as an invoice number.
        #[arg(long, value_name = "TEXT")]
        reference: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the balance of an account and what moved it last.
    Show {
        /// Whose.
        #[command(flatten)]
        account: Account,
        /// Print JSON.
        #[arg(long)]
        json: bool,
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
    fn the_settings_can_be_named_before_and_after_the_command() {
        for line in [
            ["tollgate", "--config", "a.toml", "serve"],
            ["tollgate", "serve", "--config", "a.toml"],
        ] {
            let args = Args::try_parse_from(line).expect("it reads");
            assert_eq!(args.config, Some(PathBuf::from("a.toml")));
        }
    }
}

#![doc = include_str!("README.md")]

mod account;
mod audit;
mod audit_log;
mod backup;
mod cache;
mod check;
mod compare;
mod control_client;
mod credits;
mod database_wait;
mod doctor;
mod exit_code;
mod key;
mod migrate;
mod nodes;
mod output;
mod payment;
mod paypal;
mod progress;
mod providers;
mod reload;
mod repair;
mod retention;
mod serve;
mod time;
mod upgrade;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use tollgate_clock::Clock;

use crate::args::{Args, Command, SettingsCommand};
use crate::config::{self, Environment, Settings};
use crate::{GatewayBuilder, demo};
use control_client::ControlClient;
use exit_code::SUCCESS;
use output::Output;

/// The variable that names the settings file by default.
const CONFIG: &str = "TOLLGATE_CONFIG";

/// Makes the builder of the gateway that the commands serve, or of the gateway whose settings the commands read.
pub type MakeBuilder<'a> = &'a dyn Fn() -> GatewayBuilder;

/// The `tollgate` program: parses the command line, runs the command, and reports its result.
///
/// A program with additional modules passes a function that adds the modules: `|| Gateway::builder().module(OfficeHoursModule)`. The
/// program then has every command, log and signal of the standard program.
pub fn main(builder: impl Fn() -> GatewayBuilder) -> ExitCode {
    let args = Args::parse();
    let environment = Environment::of_process();
    let mut out = std::io::stdout();
    let ended = run(args, &builder, &environment, &mut out).and_then(|code| {
        out.flush().context("cannot print")?;
        Ok(code)
    });
    match ended {
        Ok(code) => ExitCode::from(code),
        // The reader closed the pipe, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(SUCCESS),
        Err(error) => {
            crate::telemetry::print_error(&format!("tollgate: {error:#}\n"));
            ExitCode::from(exit_code::of(&error))
        }
    }
}

/// Runs the command of a command line; the result is the exit code.
///
/// # Errors
///
/// Why the command failed, as a chain of causes for the operator.
pub fn run(
    args: Args,
    builder: MakeBuilder<'_>,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let config = args
        .config
        .or_else(|| environment.get(CONFIG).map(PathBuf::from));
    let json = args.json;
    if json && matches!(args.command, Command::Serve | Command::Completions { .. }) {
        bail!("this command has no result that could be JSON; leave out `--json`");
    }
    let context = CommandContext {
        config,
        json,
        builder,
        environment,
    };
    dispatch(args.command, context, &mut Output::new(out, json))
}

/// The options of every command, and the program around the command.
struct CommandContext<'a> {
    /// The settings file.
    config: Option<PathBuf>,
    json: bool,
    builder: MakeBuilder<'a>,
    environment: &'a Environment,
}

impl CommandContext<'_> {
    fn file(&self) -> anyhow::Result<&Path> {
        self.config.as_deref().with_context(|| {
            format!("no settings file is given; use `--config FILE` or set {CONFIG}")
        })
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        load(self.file()?, self.builder, self.environment)
    }

    fn client(&self) -> anyhow::Result<ControlClient> {
        Ok(ControlClient::new(self.settings()?))
    }
}

/// Runs a command. A command without a need for settings does not load the settings.
fn dispatch(
    command: Command,
    context: CommandContext<'_>,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let (builder, environment) = (context.builder, context.environment);
    let file = || context.file();
    let settings = || context.settings();
    let client = || context.client();
    match command {
        Command::Demo { port } => {
            let options = demo::Options {
                port,
                json: context.json,
                config: context.config,
            };
            serve::demo(builder(), &options, environment, out.writer())
        }
        Command::Serve => serve::serve(builder(), environment, settings),
        Command::Check => check::check(file()?, &builder().declarations(), environment, out),
        Command::Doctor => {
            let settings = config::load(file()?, environment, &builder().declarations());
            doctor::run(settings, &Clock::system(), out)
        }
        Command::Schema => check::schema(&builder().declarations(), out),
        Command::OpenApi { admin: true } => check::admin_openapi(out),
        Command::OpenApi { admin: false } => check::openapi(settings()?, out),
        Command::Account(command) => account::run(command, &client()?, out),
        Command::Key(command) => key::run(command, &client()?, out),
        Command::Credits(command) => credits::run(command, &client()?, out),
        Command::Payment(command) => payment::run(command, &client()?, out),
        Command::PayPal(command) => paypal::run(command, &settings()?, out),
        Command::Providers => providers::run(&client()?, out),
        Command::Reload => reload::reload(&client()?, out),
        Command::Upgrade { program } => upgrade::upgrade(program, &client()?, out),
        Command::Settings(SettingsCommand::Diff) => reload::diff(&client()?, out),
        Command::Cache(command) => cache::run(command, &client()?, out),
        Command::Nodes { command } => nodes::run(command, &settings()?, out),
        Command::Usage { account, from, to } => {
            let days = usage::Days {
                from: from.as_deref(),
                to: to.as_deref(),
            };
            usage::run(&account.account, days, &client()?, out)
        }
        Command::Audit {
            exports,
            fix_derived,
            progress,
        } => {
            let options = audit::AuditOptions {
                fix_derived,
                exports: exports.as_deref(),
                show_progress: progress.progress,
            };
            audit::audit(client, &options, out)
        }
        Command::AuditLog(args) => audit_log::run(args, &client()?, out),
        Command::Repair { apply, accept_loss } => {
            repair::run(client, repair::Options { apply, accept_loss }, out)
        }
        Command::Backup { target, progress } => {
            backup::backup(&client()?, &target, progress.progress, out)
        }
        Command::Compare { backup } => compare::run(&client()?, &backup, out),
        Command::Migrate { from, to, progress } => {
            let client = match to {
                Some(to) => client()?.at(&to)?,
                None => client()?,
            };
            migrate::migrate(&client, &from, progress.progress, out)
        }
        Command::Retention { dry_run, progress } => {
            retention::run(&client()?, dry_run, progress.progress, out)
        }
        Command::Completions { shell } => print_completions(shell, out),
        Command::Man { folder } => write_manual_pages(&folder, out),
    }
}

fn print_completions(shell: Shell, out: &mut Output<'_>) -> anyhow::Result<u8> {
    // Into memory first: the generator panics on a failed write, and a closed pipe is no failure.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tollgate", &mut script);
    out.document(&script)?;
    Ok(SUCCESS)
}

fn write_manual_pages(folder: &Path, out: &mut Output<'_>) -> anyhow::Result<u8> {
    clap_mangen::generate_to(Args::command(), folder)
        .with_context(|| format!("cannot write manual pages into `{}`", folder.display()))?;
    out.show(&serde_json::json!({ "folder": folder }), |_| Ok(()))?;
    Ok(SUCCESS)
}

fn load(
    file: &Path,
    builder: MakeBuilder<'_>,
    environment: &Environment,
) -> anyhow::Result<Settings> {
    config::load(file, environment, &builder().declarations())
        .map_err(|report| anyhow::anyhow!("the settings are invalid\n{report}"))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests;

//! Changed settings of a running gateway.

use std::process::Command;

use serde_json::Value;
use tollgate_testing::Process;
use toml::Table;

use super::{PROVIDER_KEY, Rig};

impl Rig {
    /// Rewrites the settings file.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Table)) {
        let file = self.folder.path().join("tollgate.toml");
        let text = std::fs::read_to_string(&file).expect("the settings");
        let mut table: Table = text.parse().expect("TOML");
        change(&mut table);
        let text = toml::to_string(&table).expect("tables are TOML");
        std::fs::write(&file, text).expect("the folder takes files");
    }

    /// Reloads the settings by the command; returns the changed keys.
    ///
    /// # Errors
    ///
    /// The output of a refused command.
    pub(crate) async fn reload(&self) -> Result<Vec<String>, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let file = self.folder.path().join("tollgate.toml");
        command.args(["reload", "--json", "--config"]).arg(file);
        command.env("PROVIDER_KEY", PROVIDER_KEY);
        let process = Process::spawn(&mut command).expect("the program starts");
        let ended = tokio::task::spawn_blocking(move || {
            let mut process = process;
            (process.wait(), process.output())
        });
        let (status, output) = ended.await.expect("the command ends");
        if !status.success() {
            return Err(output);
        }
        let line = output.lines().find(|line| line.starts_with('{'));
        let reloaded: Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
        let changes = reloaded["changes"].as_array().expect("a list").iter();
        let key = |change: &Value| change["key"].as_str().expect("a key").to_owned();
        Ok(changes.map(key).collect())
    }
}

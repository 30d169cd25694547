//! The `tollgate` program.

fn main() -> anyhow::Result<()> {
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let port = std::env::args()
        .nth(2)
        .and_then(|port| port.parse().ok())
        .unwrap_or(8080);
    let options = tollgate::demo::Options {
        port,
        json: false,
        config: None,
    };
    let environment = tollgate::config::Environment::of_process();
    tollgate::demo::run(&options, &environment, stop, &mut std::io::stdout())
}

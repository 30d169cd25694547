//! The `tollgate` program: see [`tollgate::commands`].

fn main() -> std::process::ExitCode {
    tollgate::commands::main()
}

//! Entry point of the `tollgate` program: see [`tollgate::commands`].

#[global_allocator]
static ALLOCATOR: tollgate::Allocator = tollgate::Allocator;

fn main() -> std::process::ExitCode {
    tollgate::commands::main(tollgate::Gateway::builder)
}

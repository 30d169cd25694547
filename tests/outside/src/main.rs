//! The whole command line of tollgate, with the module of this program.

mod config;
mod module;
mod price_limit;
mod user_member;

#[global_allocator]
static ALLOCATOR: tollgate::Allocator = tollgate::Allocator;

fn main() -> std::process::ExitCode {
    tollgate::commands::main(|| {
        tollgate::Gateway::builder()
            .module(module::PriceLimitModule)
            .route(module::completions())
    })
}

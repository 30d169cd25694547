.PHONY: demo test bench

demo: ; @tests/run --tools build && cargo run --release -- demo
test: ; @tests/run
bench: ; @benches/run

//! Calls to a chain node (JSON-RPC) about an authorization, and their answers.
//!
//! | Evidence | Proves the payment? |
//! |---|---|
//! | spent nonce | no: the owner may have cancelled the authorization |
//! | hash of a transaction | no: the amount is unknown |
//! | log of the nonce's use, directly followed by the token's log of the transfer | yes (EIP-3009 marks a nonce as used, then moves the money) |
//! | transfer elsewhere in the transaction | no: one transaction can use many nonces, and each transfer pays for one nonce |

use serde_json::{Value, json};
use tollgate_evm::{Address, Nonce, TxHash, Word};

use super::offer::Terms;

/// The function selector of `authorizationState(address,bytes32)` (EIP-3009): the first four bytes of its hash.
const AUTHORIZATION_STATE: &str = "0xe94a0102";

/// The hash of `AuthorizationUsed(address,bytes32)`.
const USED: &str = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5";

/// The hash of `AuthorizationCanceled(address,bytes32)`.
const CANCELED: &str = "0x1cdd46ff242716cdaa72d159d339a485b3438398348d68f09d7c8c0a59353d81";

/// The hash of `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// The function selector of `decimals()` (ERC-20).
const DECIMALS: &str = "0x313ce567";

/// The function selector of `DOMAIN_SEPARATOR()`, present in tokens with EIP-3009.
const DOMAIN_SEPARATOR: &str = "0x3644e515";

/// The state of a nonce, by its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceUse {
    /// No log in the searched blocks.
    Nothing,
    /// Used in this transaction. The receipt of the transaction shows whether we were paid the price.
    Used(TxHash),
    /// Cancelled by the owner.
    Canceled,
}

/// A block: the node's head, or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub number: u64,
    /// The block's timestamp in seconds, by the chain's clock.
    pub time: u64,
}

/// The call for the chain id of a node.
pub fn chain_id_call() -> Value {
    request("eth_chainId", json!([]))
}

pub fn read_chain_id(answer: &Value) -> Option<u64> {
    number(result(answer)?)
}

/// The call for the chain's head.
pub fn latest_block_call() -> Value {
    request("eth_getBlockByNumber", json!(["latest", false]))
}

/// The call for one block.
pub fn block_call(number: u64) -> Value {
    request(
        "eth_getBlockByNumber",
        json!([format!("{number:#x}"), false]),
    )
}

/// Whether a node has rejected a valid call, such as a search over too many blocks for one call.
pub fn is_rejected(answer: &Value) -> bool {
    answer.get("error").is_some_and(|error| !error.is_null())
}

/// The chain's head, or the requested block.
pub fn read_block(answer: &Value) -> Option<Block> {
    let block = result(answer)?;
    Some(Block {
        number: number(block.get("number")?)?,
        time: number(block.get("timestamp")?)?,
    })
}

/// An integer in the node's encoding: `0x` and hex digits.
fn number(value: &Value) -> Option<u64> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The call for the state of a nonce as of a block. The call names the block by number: some of several nodes behind one URL lag, and a
/// node without the block must not answer.
pub fn state_call(terms: &Terms, from: Address, nonce: Nonce, block: u64) -> Value {
    let data = format!("{AUTHORIZATION_STATE}{:x}{nonce:x}", topic(from));
    request(
        "eth_call",
        json!([
            {"to": terms.asset.address().to_string(), "data": data},
            format!("{block:#x}"),
        ]),
    )
}

/// Whether the nonce is spent; `None` for an answer without the value.
pub fn read_state(answer: &Value) -> Option<bool> {
    let word: Word = result(answer)?.as_str()?.parse().ok()?;
    let mut states = [false, true].into_iter();
    states.find(|spent| word == Word::padded(&[u8::from(*spent)]))
}

/// The call for the code at the token's address.
pub fn code_call(terms: &Terms) -> Value {
    let asset = terms.asset.address().to_string();
    request("eth_getCode", json!([asset, "latest"]))
}

/// Whether a contract exists; `None` for an inconclusive answer.
pub fn read_has_code(answer: &Value) -> Option<bool> {
    let code = result(answer)?.as_str()?.strip_prefix("0x")?;
    Some(!code.is_empty())
}

/// The call for the decimal places of the token.
pub fn decimals_call(terms: &Terms) -> Value {
    token_call(terms, DECIMALS)
}

/// The call for the token's EIP-712 domain separator.
pub fn domain_separator_call(terms: &Terms) -> Value {
    token_call(terms, DOMAIN_SEPARATOR)
}

fn token_call(terms: &Terms, selector: &str) -> Value {
    let asset = terms.asset.address().to_string();
    request(
        "eth_call",
        json!([{"to": asset, "data": selector}, "latest"]),
    )
}

/// Result of a function of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// One word.
    Word(Word),
    /// No word: the contract does not have the function, or reverted.
    Nothing,
}

/// The answer of a function of the token; `None` for an inconclusive answer.
pub fn read_returned(answer: &Value) -> Option<Returned> {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        // Nodes have one code or none for a call failed by the contract itself; the wording is common.
        let message = error.get("message").and_then(Value::as_str).unwrap_or("");
        let is_reverted = error.get("code").and_then(Value::as_i64) == Some(3)
            || message.contains("revert")
            || message.contains("invalid opcode");
        return is_reverted.then_some(Returned::Nothing);
    }
    let text = answer.get("result")?.as_str()?;
    Some(text.parse().map_or(Returned::Nothing, Returned::Word))
}

/// The call for the logs of a nonce in a block range, both ends included.
pub fn logs_call(terms: &Terms, from: Address, nonce: Nonce, blocks: (u64, u64)) -> Value {
    let filter = json!({
        "address": terms.asset.address().to_string(),
        "fromBlock": format!("{:#x}", blocks.0),
        "toBlock": format!("{:#x}", blocks.1),
        "topics": [[USED, CANCELED], topic(from).to_string(), nonce.to_string()],
    });
    request("eth_getLogs", json!([filter]))
}

/// The state of a nonce by its logs; `None` for an invalid answer, or an answer about another nonce.
pub fn read_logs(answer: &Value, terms: &Terms, from: Address, nonce: Nonce) -> Option<NonceUse> {
    let logs = result(answer)?.as_array()?;
    let mut nonce_use = NonceUse::Nothing;
    for log in logs {
        // A node that ignores part of a filter is not trusted about the rest.
        let topics = log_of(log, terms)?;
        let [event, authorizer, number] = &topics[..] else {
            return None;
        };
        if *authorizer != topic(from) || number.0 != nonce.0 {
            return None;
        }
        nonce_use = match event.to_string().as_str() {
            USED => NonceUse::Used(log.get("transactionHash")?.as_str()?.parse().ok()?),
            CANCELED => NonceUse::Canceled,
            _ => return None,
        };
    }
    Some(nonce_use)
}

/// The call for the receipt of a transaction.
pub fn receipt_call(transaction: TxHash) -> Value {
    request(
        "eth_getTransactionReceipt",
        json!([transaction.to_string()]),
    )
}

/// The effect of a transaction on a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It used the nonce to transfer exactly the price from the wallet to us.
    Paid,
    /// The transaction used the nonce for another transfer: the wallet has signed two transfers with one nonce, and the other was executed.
    OtherTransfer,
    /// The transaction did not use the nonce.
    Nothing,
}

/// The effect of a transaction on a nonce; `None` for an inconclusive answer, such as an answer about a transaction outside any block.
pub fn read_receipt(answer: &Value, terms: &Terms, from: Address, nonce: Nonce) -> Option<Proof> {
    let receipt = result(answer)?;
    if receipt.is_null() {
        return None;
    }
    if receipt.get("status")?.as_str()? != "0x1" {
        return Some(Proof::Nothing);
    }
    let logs = receipt.get("logs")?.as_array()?;
    let mut own = logs
        .iter()
        .filter_map(|log| Some((log, event(log, terms)?)));
    let is_ours = |(_, [name, authorizer, number]): &(&Value, [Word; 3])| {
        is(name, USED) && *authorizer == topic(from) && number.0 == nonce.0
    };
    if !own.any(|log| is_ours(&log)) {
        return Some(Proof::Nothing);
    }
    // The token's next log: the transfer of this nonce, unless another nonce is used first.
    let next = own.find(|(_, [name, ..])| is(name, TRANSFER) || is(name, USED));
    let is_paid = next.is_some_and(|(log, [name, payer, payee])| {
        is(&name, TRANSFER)
            && payer == topic(from)
            && payee == topic(terms.pay_to.address())
            && data(log) == Some(terms.amount.word())
    });
    Some(match is_paid {
        true => Proof::Paid,
        false => Proof::OtherTransfer,
    })
}

/// The three topics of a log of the token; `None` for other logs.
fn event(log: &Value, terms: &Terms) -> Option<[Word; 3]> {
    log_of(log, terms)?.try_into().ok()
}

fn is(name: &Word, event: &str) -> bool {
    name.to_string() == event
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

fn result(answer: &Value) -> Option<&Value> {
    match answer.get("error") {
        None | Some(Value::Null) => answer.get("result"),
        Some(_) => None,
    }
}

/// The topics of a log of the token; `None` for a log of another contract.
fn log_of(log: &Value, terms: &Terms) -> Option<Vec<Word>> {
    let address: Address = log.get("address")?.as_str()?.parse().ok()?;
    if address != terms.asset.address() || log.get("removed") == Some(&Value::Bool(true)) {
        return None;
    }
    let topics = log.get("topics")?.as_array()?;
    topics
        .iter()
        .map(|topic| topic.as_str()?.parse().ok())
        .collect()
}

/// The data of a log, if a single word.
fn data(log: &Value) -> Option<Word> {
    log.get("data")?.as_str()?.parse().ok()
}

/// An address as a word.
fn topic(address: Address) -> Word {
    Word::padded(&address.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: &str = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";

    fn terms() -> Terms {
        Terms {
            network: "eip155:8453".to_owned(),
            asset: "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
                .parse()
                .expect("an address"),
            asset_name: "USD Coin".to_owned(),
            asset_version: "2".to_owned(),
            amount: 199_000_000.into(),
            pay_to: "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
                .parse()
                .expect("an address"),
            max_timeout_secs: 300,
        }
    }

    fn from() -> Address {
        FROM.parse().expect("an address")
    }

    const NONCE: Nonce = Nonce([0x11; 32]);

    fn topic(address: &str) -> String {
        super::topic(address.parse().expect("an address")).to_string()
    }

    fn transaction() -> String {
        format!("0x{}", "ab".repeat(32))
    }

    fn used() -> Value {
        json!({"address": terms().asset.to_string(), "topics": [USED, topic(FROM), NONCE.to_string()], "data": "0x",
               "transactionHash": transaction()})
    }

    fn transfer() -> Value {
        json!({"address": terms().asset.to_string(), "topics": [TRANSFER, topic(FROM), topic(&terms().pay_to.to_string())],
               "data": format!("0x{:064x}", 199_000_000), "transactionHash": transaction()})
    }

    fn with(log: Value, member: &str, value: Value) -> Value {
        let mut log = log;
        log[member] = value;
        log
    }

    #[test]
    fn calls_are_encoded_as_nodes_expect() {
        let call = state_call(&terms(), from(), NONCE, 256);
        assert_eq!(call["params"][1], "0x100");
        assert_eq!(
            call["params"][0],
            json!({
                "to": "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913",
                "data": format!("0xe94a0102{}70997970c51812dc3a010c7d01b50e0d17dc79c8{}", "0".repeat(24), "11".repeat(32)),
            })
        );
        let logs = logs_call(&terms(), from(), NONCE, (256, 4096));
        assert_eq!(logs["params"][0]["fromBlock"], "0x100");
        assert_eq!(logs["params"][0]["toBlock"], "0x1000");
    }

    #[test]
    fn a_block_is_read_completely_or_not_at_all() {
        let block =
            |number: &str, time: &str| json!({"result": {"number": number, "timestamp": time}});
        let head = Block {
            number: 256,
            time: 1_800_000_000,
        };
        for (answer, read) in [
            (block("0x100", "0x6b49d200"), Some(head)),
            (block("256", "0x6b49d200"), None),
            (block("0x100", "0x"), None),
            (block("0x100", "0x+1"), None),
            (json!({"result": null}), None),
            (json!({"error": {"code": 1}}), None),
        ] {
            assert_eq!(read_block(&answer), read, "{answer}");
        }
        assert_eq!(read_chain_id(&json!({"result": "0x2105"})), Some(8453));
        assert_eq!(read_chain_id(&json!({"result": 8453})), None);
    }

    #[test]
    fn a_function_of_the_token_returns_a_word_or_nothing_or_the_node_does_not_say() {
        let word = format!("0x{}06", "0".repeat(62));
        let six = Returned::Word(Word::padded(&[6]));
        for (answer, read) in [
            (json!({"result": word}), Some(six)),
            (json!({"result": "0x"}), Some(Returned::Nothing)),
            (
                json!({"error": {"code": 3, "message": "execution reverted"}}),
                Some(Returned::Nothing),
            ),
            (
                json!({"error": {"code": -32000, "message": "invalid opcode: INVALID"}}),
                Some(Returned::Nothing),
            ),
            (
                json!({"error": {"code": -32005, "message": "limit exceeded"}}),
                None,
            ),
            (json!({"result": null}), None),
            (json!({}), None),
        ] {
            assert_eq!(read_returned(&answer), read, "{answer}");
        }
        assert_eq!(read_has_code(&json!({"result": "0x60"})), Some(true));
        assert_eq!(read_has_code(&json!({"result": "0x"})), Some(false));
        assert_eq!(read_has_code(&json!({"error": {"code": 1}})), None);
    }

    #[test]
    fn a_nonce_is_used_unused_or_the_answer_is_invalid() {
        let word = |last: &str| json!({"result": format!("0x{}{last}", "0".repeat(62))});
        for (answer, state) in [
            (word("00"), Some(false)),
            (word("01"), Some(true)),
            (word("02"), None),
            (json!({"result": "0x"}), None),
            (
                json!({"error": {"code": -32000}, "result": word("01")["result"]}),
                None,
            ),
            (json!({}), None),
            (json!("0x01"), None),
        ] {
            assert_eq!(read_state(&answer), state, "{answer}");
        }
    }

    #[test]
    fn logs_show_whether_a_nonce_was_used_or_cancelled() {
        let read = |logs: Value| read_logs(&json!({"result": logs}), &terms(), from(), NONCE);
        let canceled = json!([CANCELED, topic(FROM), NONCE.to_string()]);
        let hash = transaction().parse().expect("32 bytes");
        assert_eq!(read(json!([])), Some(NonceUse::Nothing));
        assert_eq!(read(json!([used()])), Some(NonceUse::Used(hash)));
        assert_eq!(
            read(json!([with(used(), "topics", canceled)])),
            Some(NonceUse::Canceled)
        );
        // A log outside the filter invalidates the whole answer.
        for odd in [
            with(used(), "address", json!(FROM)),
            with(
                used(),
                "topics",
                json!([USED, topic(&terms().pay_to.to_string()), NONCE.to_string()]),
            ),
            with(used(), "topics", json!([USED, topic(FROM), topic(FROM)])),
            with(
                used(),
                "topics",
                json!([TRANSFER, topic(FROM), NONCE.to_string()]),
            ),
            with(used(), "removed", json!(true)),
            with(used(), "transactionHash", Value::Null),
        ] {
            assert_eq!(read(json!([odd])), None, "{odd}");
        }
        assert_eq!(read(Value::Null), None);
    }

    #[test]
    fn a_transaction_has_paid_when_it_used_the_nonce_to_move_the_price() {
        let read = |status: &str, logs: Value| {
            let answer = json!({"result": {"status": status, "logs": logs}});
            read_receipt(&answer, &terms(), from(), NONCE)
        };
        assert_eq!(read("0x1", json!([used(), transfer()])), Some(Proof::Paid));
        assert_eq!(
            read("0x0", json!([used(), transfer()])),
            Some(Proof::Nothing)
        );
        let other = terms().pay_to.to_string();
        for logs in [
            json!([used()]),
            json!([
                used(),
                with(transfer(), "data", json!(format!("0x{:064x}", 198_999_999)))
            ]),
            json!([used(), with(transfer(), "address", json!(FROM))]),
            json!([
                used(),
                with(
                    transfer(),
                    "topics",
                    json!([TRANSFER, topic(FROM), topic(FROM)])
                )
            ]),
            json!([
                used(),
                with(
                    transfer(),
                    "topics",
                    json!([TRANSFER, topic(&other), topic(&other)])
                )
            ]),
        ] {
            assert_eq!(
                read("0x1", logs.clone()),
                Some(Proof::OtherTransfer),
                "{logs}"
            );
        }
        for logs in [
            json!([transfer()]),
            json!([
                with(
                    used(),
                    "topics",
                    json!([USED, topic(&other), NONCE.to_string()])
                ),
                transfer()
            ]),
            json!([
                with(
                    used(),
                    "topics",
                    json!([CANCELED, topic(FROM), NONCE.to_string()])
                ),
                transfer()
            ]),
        ] {
            assert_eq!(read("0x1", logs.clone()), Some(Proof::Nothing), "{logs}");
        }
        // The price is transferred, but not as the transfer of this nonce.
        let mine = transfer();
        let nothing = with(
            with(
                transfer(),
                "topics",
                json!([TRANSFER, topic(FROM), topic(FROM)]),
            ),
            "data",
            json!(format!("0x{:064x}", 0)),
        );
        let twin = with(
            used(),
            "topics",
            json!([USED, topic(FROM), format!("0x{}", "22".repeat(32))]),
        );
        for logs in [
            json!([mine, used()]),
            json!([used(), nothing, mine]),
            json!([twin, mine, used(), nothing]),
            json!([used(), nothing, twin, mine]),
            json!([used(), twin, mine]),
        ] {
            assert_eq!(
                read("0x1", logs.clone()),
                Some(Proof::OtherTransfer),
                "{logs}"
            );
        }
        // Other payments may share the transaction, and the token may log more in between.
        let approval = with(
            transfer(),
            "topics",
            json!([format!("0x{}", "33".repeat(32)), topic(FROM), topic(FROM)]),
        );
        for logs in [
            json!([twin, nothing, used(), mine]),
            json!([used(), approval, mine, twin, nothing]),
            json!([used(), with(nothing.clone(), "address", json!(FROM)), mine]),
        ] {
            assert_eq!(read("0x1", logs.clone()), Some(Proof::Paid), "{logs}");
        }
        let absent = read_receipt(&json!({"result": null}), &terms(), from(), NONCE);
        assert_eq!(absent, None, "it is in no block");
    }
}

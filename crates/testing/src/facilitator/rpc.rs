//! The chain's node: the RPC calls used for payments.

use base16ct::mixed;
use serde_json::{Value, json};
use tollgate_evm::{Address, Nonce, Word};

use super::chain::{AuthorizationUse, Chain, Mined};
use super::token::{Contract, Token};

const USED: &str = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5";
const CANCELED: &str = "0x1cdd46ff242716cdaa72d159d339a485b3438398348d68f09d7c8c0a59353d81";
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// The message of a call that the contract has failed.
const REVERTED: &str = "execution reverted";

pub(super) fn answer(question: &Value, chain: &Chain, token: &Token) -> Value {
    let params = &question["params"];
    let result = match question["method"].as_str() {
        Some("eth_chainId") => Ok(json!(format!("{:#x}", chain.number))),
        Some("eth_getBlockByNumber") => Ok(block(&params[0], chain)),
        Some("eth_call") => called(params, chain, token),
        Some("eth_getCode") => Ok(code(&params[0], chain, token)),
        Some("eth_getLogs") => logs(&params[0], chain, token),
        Some("eth_getTransactionReceipt") => Ok(receipt(&params[0], chain, token)),
        _ => Err("the method does not exist"),
    };
    match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": question["id"], "result": result}),
        Err(why) => {
            let code = match why {
                REVERTED => 3,
                _ => -32601,
            };
            json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": why}})
        }
    }
}

/// The code at an address, as far as it matters: some or none.
fn code(address: &Value, chain: &Chain, token: &Token) -> Value {
    let is_token = address.as_str().and_then(|text| text.parse().ok()) == Some(token.asset);
    json!(match is_token && chain.contract != Contract::Nothing {
        true => "0x6080604052",
        false => "0x",
    })
}

/// A call of a function of the token.
fn called(params: &Value, chain: &Chain, token: &Token) -> Result<Value, &'static str> {
    let data = params[0]["data"]
        .as_str()
        .and_then(|text| mixed::decode_vec(text.strip_prefix("0x")?).ok())
        .ok_or("no data")?;
    let to = params[0]["to"].as_str().and_then(|text| text.parse().ok());
    let Contract::Token {
        decimals,
        domain_separator,
    } = chain.contract
    else {
        return Ok(json!("0x"));
    };
    match data.get(..4) {
        Some([0x31, 0x3c, 0xe5, 0x67]) if to == Some(token.asset) => {
            let word = decimals.map(|decimals| Word::padded(&[decimals]).to_string());
            word.map(Value::from).ok_or(REVERTED)
        }
        Some([0x36, 0x44, 0xe5, 0x15]) if to == Some(token.asset) => {
            domain_separator.map(Value::from).ok_or(REVERTED)
        }
        Some([0xe9, 0x4a, 0x01, 0x02]) if to == Some(token.asset) && data.len() == 68 => {
            state(params, &data, chain)
        }
        _ => Err(REVERTED),
    }
}

/// `authorizationState(wallet, number)`.
fn state(params: &Value, data: &[u8], chain: &Chain) -> Result<Value, &'static str> {
    let wanted = number(&params[1]).filter(|block| *block <= chain.head().0);
    let wanted = wanted.ok_or("no such block")?;
    let wallet = Address(data[16..36].try_into().expect("20 bytes"));
    let nonce = Nonce(data[36..].try_into().expect("32 bytes"));
    let used = chain.uses.get(&(wallet, nonce));
    let block = used.and_then(|used| chain.block_of(*used));
    let spent = block.is_some_and(|block| block <= wanted);
    Ok(json!(Word::padded(&[u8::from(spent)]).to_string()))
}

fn block(wanted: &Value, chain: &Chain) -> Value {
    let shown = |number: u64, time: u64| json!({"number": format!("{number:#x}"), "timestamp": format!("{time:#x}")});
    match number(wanted) {
        None => shown(chain.head().0, chain.head().1),
        Some(number) if number <= chain.head().0 => shown(number, chain.time_of(number)),
        Some(_) => Value::Null,
    }
}

fn logs(filter: &Value, chain: &Chain, token: &Token) -> Result<Value, &'static str> {
    let (Some(first), Some(last)) = (number(&filter["fromBlock"]), number(&filter["toBlock"]))
    else {
        return Err("no blocks");
    };
    if last.saturating_sub(first) >= chain.blocks_max {
        return Err("too many blocks at once");
    }
    let wanted = (&filter["topics"][1], &filter["topics"][2]);
    let found = chain.uses.iter().filter_map(|((wallet, nonce), used)| {
        let topics = (json!(topic(wallet)), json!(nonce.to_string()));
        if (&topics.0, &topics.1) != wanted {
            return None;
        }
        let block = chain.block_of(*used)?;
        let (event, transaction) = match used {
            AuthorizationUse::Used(hash) => (USED, hash.to_string()),
            AuthorizationUse::Canceled(_) => (CANCELED, format!("0x{}", "cc".repeat(32))),
        };
        (first..=last.min(chain.head().0)).contains(&block).then(|| {
            json!({"address": token.asset.to_string(), "topics": [event, topics.0, topics.1], "data": "0x",
                "transactionHash": transaction, "blockNumber": format!("{block:#x}"), "removed": false})
        })
    });
    Ok(found.collect())
}

/// Logs of every transfer of a transaction, in order: its nonce is used, then its money moves.
fn receipt(hash: &Value, chain: &Chain, token: &Token) -> Value {
    let all = &chain.mined;
    let mined = || {
        all.iter()
            .filter(|mined| *hash == mined.transaction.to_string())
    };
    if chain.reverted.iter().any(|one| *hash == one.to_string()) {
        return json!({"status": "0x0", "transactionHash": *hash, "blockNumber": format!("{:#x}", chain.head().0), "logs": []});
    }
    let Some(Mined { block, .. }) = mined().next().filter(|mined| mined.block <= chain.head().0)
    else {
        return Value::Null;
    };
    let log = |topics: Value, data: String| json!({"address": token.asset.to_string(), "topics": topics, "data": data, "transactionHash": *hash, "removed": false});
    let logs = mined().flat_map(|Mined { transfer, .. }| {
        let (from, to) = (topic(&transfer.from), topic(&transfer.to));
        let value = transfer.value.word().to_string();
        [
            log(
                json!([USED, from, transfer.nonce.to_string()]),
                "0x".to_owned(),
            ),
            log(json!([TRANSFER, from, to]), value),
        ]
    });
    json!({"status": "0x1", "transactionHash": *hash, "blockNumber": format!("{block:#x}"), "logs": logs.collect::<Vec<_>>()})
}

fn topic(address: &Address) -> String {
    Word::padded(&address.0).to_string()
}

fn number(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

//! Rows of prices.

use tollgate_money::{Micros, Price, TokenPrice};

use crate::engine::{RowError, Select, Sql, SqlRow, values};
use crate::rows::PriceRow;

/// Visits every version of every price, in the order of their start.
pub(crate) fn all(connection: &dyn Sql, each: &mut dyn FnMut(PriceRow)) -> Result<(), RowError> {
    let sql = "SELECT ver, model, in_per_mtok, out_per_mtok, per_request, valid_from FROM prices ORDER BY valid_from, model";
    connection.each(sql, values![], price, each)
}

fn price(row: &dyn SqlRow) -> Result<PriceRow, RowError> {
    let tokens = |at| -> Result<TokenPrice, RowError> {
        let amount: i64 = row.get(at)?;
        TokenPrice::new(Micros::new(amount)).ok_or_else(|| RowError::Unknown {
            what: "a price",
            value: amount.to_string(),
        })
    };
    Ok(PriceRow {
        version: row.get(0)?,
        model: row.get(1)?,
        price: Price {
            input: tokens(2)?,
            output: tokens(3)?,
            request: row.get(4)?,
        },
        valid_from: row.get(5)?,
    })
}

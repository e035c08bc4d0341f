//! Names by number, and the numbers that wait, in durable memory. Both change in one transaction,
//! so that they agree after any crash.
//!
//!     office DIRECTORY add NUMBER NAME    stores the name, and queues the number
//!     office DIRECTORY next               takes a number from the queue, and prints its name

use mnemosyne::memory::{DirectoryOptions, DurableMemory, Options};
use mnemosyne::tx::Stop;
use persist::structures::{Bytes, HashMap, Queue};
use persist::{Persist, TypedSession};
use std::convert::Infallible;
use std::error::Error;

#[derive(Persist)]
struct Office {
    names: HashMap<u64, Bytes>,
    waiting: Queue<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((directory, command)) = words.split_first() else {
        return Err("usage: office DIRECTORY add NUMBER NAME | office DIRECTORY next".into());
    };
    let memory =
        DurableMemory::open_directory(directory, &DirectoryOptions::default(), Options::default())?;
    let mut session = memory.session();
    // The first run makes the root; later runs find it, if the types are the same.
    let office = session.root("office", |_| {
        Ok(Office {
            names: HashMap::new(),
            waiting: Queue::new(),
        })
    })?;
    let (names, waiting) = (office.at(Office::NAMES), office.at(Office::WAITING));
    match command {
        ["add", number, name] => {
            let number: u64 = number.parse()?;
            // Durable as a whole when it returns.
            session.run(|tx| {
                names.insert(tx, &number, name.as_bytes())?;
                waiting.push(tx, &number)?;
                Ok::<_, Stop<Infallible>>(())
            })?;
        }
        ["next"] => {
            let next = session.run(|tx| {
                let Some(number) = waiting.pop(tx)? else {
                    return Ok(None);
                };
                let name = names.get(tx, &number)?.unwrap_or_default();
                Ok::<_, Stop<Infallible>>(Some((number, name)))
            })?;
            match next {
                Some((number, name)) => println!("{number}: {}", String::from_utf8_lossy(&name)),
                None => println!("nobody waits"),
            }
        }
        _ => return Err("office: the commands are `add NUMBER NAME` and `next`".into()),
    }
    Ok(())
}

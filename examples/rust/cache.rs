//! A cache of pages for several programs at once: a page is the value of a key, and a file lists what was
//! put there. The same cache as that of `c/cache.c`.
//!
//!     cache SOCKET put NAME <PAGE    stores a page, and appends its name to the list
//!     cache SOCKET show NAME         prints a page
//!     cache SOCKET names             prints the names of all pages
//!     cache SOCKET list              prints the list

use aerie_client::{Client, Files, Kv, OFlags, Options};
use std::error::Error;
use std::io::{Read, Write, copy, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((socket, command)) = words.split_first() else {
        return Err("usage: cache SOCKET put NAME | show NAME | names | list".into());
    };
    let client = Client::connect(socket.as_ref(), &Options::default())?;
    let (pages, files) = (Kv::create(&client, b"cache/pages")?, Files::new(&client));
    match command {
        ["put", name] => {
            let mut page = Vec::new();
            stdin().read_to_end(&mut page)?;
            pages.put(name.as_bytes(), &page)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
            let list = files.open(b"cache/list", flags, 0o644)?;
            list.write(format!("{name}\n").as_bytes())?;
            list.sync()?; // the page is durable, too
        }
        ["show", name] => {
            // The page is read where it is in the store.
            let printed = pages.borrow(name.as_bytes(), |mut page| copy(&mut page, &mut stdout()));
            printed?.ok_or("there is no such page")??;
        }
        ["names"] => pages.list(|name| {
            println!("{}", String::from_utf8_lossy(name));
            true
        })?,
        _ => {
            let list = files.open(b"cache/list", OFlags::RDONLY, 0)?;
            let mut part = [0; 4096];
            loop {
                match list.read(&mut part)? {
                    0 => break,
                    len => stdout().write_all(&part[..len])?,
                }
            }
        }
    }
    Ok(())
}

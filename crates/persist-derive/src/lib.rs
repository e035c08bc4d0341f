//! `#[derive(Persist)]`: the layout of a type's values in persistent memory, field by field.
//!
//! A struct has its fields in order, each at the next multiple of its alignment. The type also
//! gets a constant for each field, in capitals, which leads from a pointer to the struct to a
//! pointer to the field. (If fields have no names, the constants are `FIELD_0` and so on.) An
//! enum without fields is the number of the variant, in 4 bytes.
//!
//! `#[persist(name = "...")]` is the type's name in layouts, in place of its own. A type can
//! thus be renamed without making roots that contain it unusable.
//!
//! ```
//! use persist::{Layouts, Persist, Ptr};
//!
//! #[derive(Persist)]
//! struct Mail {
//!     number: u64,
//!     state: State,
//!     is_urgent: bool,
//! }
//!
//! #[derive(Persist)]
//! enum State {
//!     Queued,
//!     Sent,
//! }
//!
//! assert_eq!((Mail::SIZE, Mail::ALIGN), (16, 8));
//! let mail = Ptr::<Mail>::new(4096).expect("a multiple of 8");
//! assert_eq!(mail.at(Mail::STATE).off(), 4104);
//! let text = "Mail { 0 number: u64 8 state: State { Queued | Sent } 12 is_urgent: bool 16 }";
//! assert_eq!(Layouts::of::<Mail>().text().trim_end(), text);
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{
    Data, DataEnum, DataStruct, DeriveInput, Error, Fields, Ident, LitStr, Result, Type, Visibility,
};

/// Derives `persist::Persist`, for structs of such types and for enums without fields.
#[proc_macro_derive(Persist, attributes(persist))]
pub fn derive_persist(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    let derived = match &input.data {
        Data::Struct(data) => of_struct(&input, data),
        Data::Enum(data) => of_enum(&input, data),
        Data::Union(_) => Err(refused(
            &input,
            "a union does not record which of its fields it holds",
        )),
    };
    derived.unwrap_or_else(Error::into_compile_error).into()
}

fn refused(at: &impl Spanned, why: &str) -> Error {
    Error::new(at.span(), format!("Persist cannot be derived: {why}"))
}

/// The name of a type in layouts.
fn layout_name(input: &DeriveInput) -> Result<String> {
    let mut name = input.ident.to_string();
    for attribute in input
        .attrs
        .iter()
        .filter(|attr| attr.path().is_ident("persist"))
    {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("the attribute is #[persist(name = \"...\")]"));
            }
            name = meta.value()?.parse::<LitStr>()?.value();
            Ok(())
        })?;
    }
    Ok(name)
}

/// A field: its name in patterns, and the name of its constant.
struct Field<'a> {
    member: syn::Member,
    constant: Ident,
    ty: &'a Type,
    visibility: &'a Visibility,
}

fn fields(data: &DataStruct) -> Vec<Field<'_>> {
    let field = |(n, field): (usize, &'_ syn::Field)| (n, field.ident.clone());
    let named = data
        .fields
        .iter()
        .enumerate()
        .map(|pair| (field(pair), pair.1));
    named
        .map(|((n, ident), field)| Field {
            constant: match &ident {
                // The constant of `r#type` is `TYPE`.
                Some(name) => {
                    let name = name.to_string();
                    format_ident!("{}", name.trim_start_matches("r#").to_uppercase())
                }
                None => format_ident!("FIELD_{n}"),
            },
            member: ident.map_or_else(|| n.into(), Into::into),
            ty: &field.ty,
            visibility: &field.vis,
        })
        .collect()
}

fn of_struct(input: &DeriveInput, data: &DataStruct) -> Result<TokenStream> {
    if !input.generics.params.is_empty() {
        return Err(refused(&input.generics, "generic types have no one layout"));
    }
    let name = &input.ident;
    let fields = fields(data);
    let types: Vec<_> = fields.iter().map(|field| field.ty).collect();
    let members: Vec<_> = fields.iter().map(|field| &field.member).collect();
    let numbers: Vec<_> = (0..fields.len()).collect();
    let count = fields.len();
    let constants = fields.iter().enumerate().map(|(n, field)| {
        let Field {
            constant,
            ty,
            visibility,
            ..
        } = field;
        let doc = "Leads from a pointer to the value to a pointer to this field.";
        quote! {
            #[doc = #doc]
            #[allow(dead_code)]
            #visibility const #constant: ::persist::Field<#name, #ty> =
                ::persist::Field::at(<#name as ::persist::Persist>::OFFSETS[#n]);
        }
    });
    let labels = members.iter().map(|member| match member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(index) => index.index.to_string(),
    });
    let text = layout_name(input)?;
    Ok(quote! {
        impl ::persist::Persist for #name {
            const OFFSETS: &'static [u64] = &::persist::offsets::<#count>([
                #((<#types as ::persist::Persist>::SIZE, <#types as ::persist::Persist>::ALIGN)),*
            ]).0;
            const SIZE: u64 = ::persist::offsets::<#count>([
                #((<#types as ::persist::Persist>::SIZE, <#types as ::persist::Persist>::ALIGN)),*
            ]).1;
            const ALIGN: u64 = ::persist::largest::<#count>([
                #(<#types as ::persist::Persist>::ALIGN),*
            ]);

            fn describe(layout: &mut ::persist::Layouts) {
                layout.structure::<Self>(#text, &[
                    #((#labels, <#types as ::persist::Persist>::describe)),*
                ]);
            }

            fn decode(bytes: &[u8]) -> ::core::option::Option<Self> {
                ::core::option::Option::Some(Self {
                    #(#members: ::persist::decode_at(
                        bytes, <Self as ::persist::Persist>::OFFSETS[#numbers])?),*
                })
            }

            fn encode(&self, bytes: &mut [u8]) {
                #(::persist::encode_at(
                    &self.#members, bytes, <Self as ::persist::Persist>::OFFSETS[#numbers]);)*
            }
        }

        impl #name {
            #(#constants)*
        }
    })
}

fn of_enum(input: &DeriveInput, data: &DataEnum) -> Result<TokenStream> {
    if data.variants.is_empty() {
        return Err(refused(
            &input.ident,
            "an enum without variants has no values",
        ));
    }
    if let Some(variant) = data
        .variants
        .iter()
        .find(|v| !matches!(v.fields, Fields::Unit))
    {
        return Err(refused(
            variant,
            "a variant has fields; keep them in a struct beside the enum",
        ));
    }
    let name = &input.ident;
    let variants: Vec<_> = data.variants.iter().map(|variant| &variant.ident).collect();
    let numbers = 0..variants.len() as u32;
    let numbers: Vec<_> = numbers.collect();
    let labels = variants.iter().map(ToString::to_string);
    let text = layout_name(input)?;
    Ok(quote! {
        impl ::persist::Persist for #name {
            const SIZE: u64 = 4;
            const ALIGN: u64 = 4;

            fn describe(layout: &mut ::persist::Layouts) {
                layout.variants(#text, &[#(#labels),*]);
            }

            fn decode(bytes: &[u8]) -> ::core::option::Option<Self> {
                match ::persist::decode_at::<u32>(bytes, 0)? {
                    #(#numbers => ::core::option::Option::Some(Self::#variants),)*
                    _ => ::core::option::Option::None,
                }
            }

            fn encode(&self, bytes: &mut [u8]) {
                let number: u32 = match self {
                    #(Self::#variants => #numbers,)*
                };
                ::persist::encode_at(&number, bytes, 0);
            }
        }
    })
}

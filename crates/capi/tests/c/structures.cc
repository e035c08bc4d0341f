// The header in C++, on its own and first.
#include <selvedge/short.h>
#include <selvedge/structures.h>

int main()
{
    selvedge_table *table = selvedge_table_root("table");
    selvedge_journal *journal = nullptr;
    long value = 0;
    ssize_t size = 0;
    patomic {
        value = 7;
        selvedge_table_put(table, "key", 3, &value, sizeof value);
        size = selvedge_table_get(table, "key", 3, &value, sizeof value);
        journal = selvedge_journal_root("journal");
    }
    char key[8];
    selvedge_entry entry = {key, sizeof key, 0, &value, sizeof value, 0};
    selvedge_journal_cursor place = {};
    if (size != sizeof value || value != 7 || selvedge_table_first(table, &entry) != 1)
        return 1;
    return entry.key_size != 3 || selvedge_journal_append(journal, key, 3) != 0 ||
           selvedge_journal_read(journal, &place, nullptr, 0) != 3 || place.number != 1;
}

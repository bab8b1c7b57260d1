# SPDX-License-Identifier: MIT OR Apache-2.0
# A header by cbindgen, or a part of one: its macros, and in their place typed constants for programs
# that read headers (bindgen, cffi). Those give a macro a type by its value, or do not read it.
{ line[NR] = $0 }
/^\/\*\*/ { comment = NR }
/^#define [A-Z_0-9]+ / { if (!last) first = comment; last = NR }
function typed(words,    name, value, bit) {
	name = words[2]
	value = words[3]
	if (words[4] == "<<") { # "(1ull << 8)" as a number: not every reader evaluates it
		bit = words[5] + 0
		value = "0x" 2 ^ (bit % 4)
		for (bit = int(bit / 4); bit > 0; bit--)
			value = value "0"
		if (words[3] ~ /ull/)
			value = value "ull"
	}
	return "static const " (value ~ /ull/ ? "uint64_t " : "int ") name " = " value ";"
}
END {
	for (n = 1; n <= NR; n++) {
		if (n == first) {
			print "#ifdef RDMAMR_TYPED_CONSTANTS\n"
			for (at = first; at <= last; at++)
				if (line[at] ~ /^#define/ && split(line[at], words, " "))
					print typed(words)
			print "\n#else\n"
		}
		print line[n]
		if (n == last)
			print "\n#endif"
	}
}

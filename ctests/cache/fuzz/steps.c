/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "fuzz.h"

uint64_t draw(struct draw *draw)
{
	uint64_t value = draw->state += 0x9e3779b97f4a7c15;

	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
	value = (value ^ value >> 27) * 0x94d049bb133111eb;
	return value ^ value >> 31;
}

uint32_t below(struct draw *from, uint32_t limit) { return (uint32_t)((draw(from) >> 32) * limit >> 32); }

static int draw_kind(struct draw *from)
{
	uint32_t sum = 0, at;
	int n = 0;

	for (int kind = 0; kind < kinds_count; kind++)
		sum += kinds[kind].weight;
	for (at = below(from, sum); at >= kinds[n].weight; n++)
		at -= kinds[n].weight;
	return n;
}

/* Recently drawn pages, for ranges that meet. */
struct range {
	int first, count;
};

static struct range draw_range(struct draw *from, const struct range *lately)
{
	struct range range = lately[below(from, 6)];
	uint32_t how = below(from, 100);
	int window, pages;

	if (how < 45 && range.count) {
		if (how < 25)
			return range;
		if (how < 35) { /* a part */
			int skip = (int)below(from, (uint32_t)range.count);

			range.first += skip;
			range.count = 1 + (int)below(from, (uint32_t)(range.count - skip));
			return range;
		}
		/* an adjoining or overlapping range */
		range.first += (int)below(from, (uint32_t)range.count + 1);
	} else {
		range.first = (int)below(from, below(from, 5) ? PLACE_PAGES : ALL_PAGES);
	}
	if (range.first >= ALL_PAGES)
		range.first = ALL_PAGES - 1;
	pages = how % 10 < 5 ? 4 : how % 10 < 9 ? 16 : PLACE_PAGES;
	range.count = 1 + (int)below(from, (uint32_t)pages);
	window = range.first < PLACE_PAGES ? PLACE_PAGES : ALL_PAGES;
	if (range.first + range.count > window)
		range.count = window - range.first;
	return range;
}

void draw_steps(uint64_t seed, struct step *steps, int count)
{
	struct draw from = { seed * 0x2545f4914f6cdd1d + 1 };
	struct range lately[6] = { 0 };

	for (int n = 0; n < count; n++) {
		struct step *step = &steps[n];
		struct range range = draw_range(&from, lately);

		*step = (struct step){
			.kind = (uint8_t)(n ? draw_kind(&from) : 0),
			.thread = below(&from, 4) == 0,
			.raw = below(&from, 100) < 45,
			.first = (uint8_t)range.first,
			.count = (uint8_t)range.count,
			.other = (uint8_t)below(&from, below(&from, 8) ? PLACE_PAGES : ALL_PAGES),
		};
		for (int word = 0; word < WORDS; word++)
			step->word[word] = (uint32_t)draw(&from);
		if (n == 0) { /* memory to begin with: plain, or of a drawn kind */
			step->first = 0;
			step->count = PLACE_PAGES;
			memset(step->word, 0, below(&from, 4) ? sizeof(step->word) : 0);
		}
		lately[below(&from, 6)] = range;
	}
}

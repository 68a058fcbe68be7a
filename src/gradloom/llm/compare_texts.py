"""Short texts on which `compare` measures by default: prose, numbers, code, a table, other scripts, a dialogue."""

from __future__ import annotations

TEXTS = (
    "The lighthouse keeper counted the ships each evening and wrote their names into a blue notebook. On the third of "
    "March there were none. She wrote the date all the same, drew a line under it, and went to light the lamp. Years "
    "later her grandson found the notebook in a box of nails and rope, and read the empty day aloud to his children.",
    "A triangle with sides of 3, 4 and 5 metres has a right angle, because 3^2 + 4^2 = 5^2. Its area is 6 square "
    "metres and its perimeter is 12 metres. If every side is multiplied by 2.5, the area grows to 37.5 square metres.",
    "def mean_and_error(values):\n    n = len(values)\n    mean = sum(values) / n\n"
    "    variance = sum((v - mean) ** 2 for v in values) / (n - 1)\n    return mean, (variance / n) ** 0.5\n\n\n"
    'print("%.3f +- %.3f" % mean_and_error([1.0, 2.0, 4.0, 8.0]))\n',
    "| city | country | people | altitude |\n|---|---|---|---|\n| Quito | Ecuador | 1,763,275 | 2,850 m |\n"
    "| Oslo | Norway | 717,710 | 23 m |\n| Perth | Australia | 2,309,338 | 31 m |\n",
    "Der Zug nach Köln fährt heute später ab. Le train pour Paris est déjà parti, mais celui de Lyon arrive bientôt."
    " El próximo tren sale a las ocho y media. Поезд в Москву отправляется вечером. 去北京的火车明天早上出发。"
    "東京行きの電車は九時に来ます。القطار إلى القاهرة متأخر.",
    "Question: Why does bread rise?\nAnswer: Yeast eats the sugar in the dough and gives off carbon dioxide. The gas "
    "is caught in small bubbles, because gluten makes the dough elastic. In the oven the bubbles grow until the crust "
    "is firm.\n\nQuestion: Does it also rise without sugar?\nAnswer: Yes, more slowly: flour contains some.",
    "To: team@example.org\nSubject: Re: Re: meeting on Thursday?\n\nHi all,\n\nThursday 14:30 works for me :-) I've "
    "attached the notes (v2.1, ~3 pages). Can't wait!!\n\n-- \nJo",
    "First heat the oil, then add the onions and stir until they are golden. Add the garlic, the ginger and a teaspoon "
    "of cumin. After one minute pour in the tomatoes, salt them, and let everything simmer for a quarter of an hour.",
)

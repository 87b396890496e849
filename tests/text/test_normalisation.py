from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.text.english.normalisation import normalise
from phonate.text.phonemes import named

GOLDEN = """
It's 1984, or 2005. => It's nineteen eighty-four, or two thousand five.
in 1906 => in nineteen oh six
the 1900s and the '90s => the nineteen hundreds and the nineties
the 1980s => the nineteen eighties
the 20s => the twenties
mid-1990s => mid-nineteen nineties
1914-1918 => nineteen fourteen to nineteen eighteen
1914–18 => nineteen fourteen to eighteen
3/14/2021 => March fourteenth, twenty twenty-one
31/12/2021 => December thirty-first, twenty twenty-one
In 1066, William came. => In ten sixty-six, William came.
in 1066 cases => in one thousand sixty-six cases
9/11 => nine eleven
5 * 3 = 15 => five times three equals fifteen
**bold** and *italic* => bold and italic
2^10 and x^2 => two to the power of ten and x squared
10³ => ten cubed
10¹², 10⁻⁵ and 2¹⁰ => ten to the power of twelve, ten to the power of minus five and two to the power of ten
6.02×10²³ => six point zero two times ten to the power of twenty-three
x²³ + y⁴ => x to the power of twenty-three plus y to the power of four
5 m² and 3² => five square meters and three squared
ten MP3s, two PS5s => ten MP three's, two PS five's
B52s in the 90s => B fifty-two's in the nineties
GMT-5, UTC-03:30 => GMT minus five, UTC minus three thirty
UTC+2 => UTC plus two
IL 62704-1234 => IL six two seven zero four, one two three four
CA 90210. => CA nine zero two one zero.
Please order 5000, order 5123 => Please order five thousand, order five one two three
In order 2000 left => In order two thousand left
Call 911! => Call nine one one!
Call 411 or 999. => Call four one one or nine nine nine.
He dialled 911, 999 or 112. => He dialled nine one one, nine nine nine or one one two.
Call 411 or 999 people, 5 or 911 => Call four one one or nine hundred ninety-nine people, five or nine hundred eleven
1-800-FLOWERS => one eight zero zero, FLOWERS
John 3:16 and Genesis 1:1 => John three sixteen and Genesis one one
he is 5'4 => he is five feet four inches
3 - 2 = 1 => three minus two equals one
pages 3 - 5 => pages three to five
10-3=7 => ten minus three equals seven
1e-5 => one times ten to the power of minus five
2.5E+6 => two point five times ten to the power of six
node.js and main.py => node dot js and main dot py
16:9 => sixteen to nine
C# and F# => C sharp and F sharp
~5 => about five
a && b => a and b
a -> b → c => a to b to c
1 000 000 => one million
10'000 people => ten thousand people
It took 1h30m. => It took one hour thirty minutes.
2h 1min => two hours one minute
a 1920x1080 screen => a nineteen twenty by one thousand eighty screen
4x4 = 16 => four times four equals sixteen
a 4x4 => a four by four
2x faster => two times faster
y = 2x + 1 => y equals two x plus one
3M makes tape => three M makes tape
$3M => three million dollars
A/B/C => A slash B slash C
I/O. => I.O.
0x10 => zero x ten
a 50/50 chance => a fifty-fifty chance
1.5M people => one point five million people
Apt. 4B => apartment four B
the IT department => the I.T. department
IT is late => IT is late
the A/C => the A.C.
he/she and a/b => he slash she and a slash b
## The next part => The next part
v2.0.1 => version two point zero point one
1/1000 => one over one thousand
8 / 2 = 4 => eight divided by two equals four
x² + 3² => x squared plus three squared
E = mc² and 4πr² => E equals m c squared and four pi r squared
3 km² or 5 ft² => three square kilometers or five square feet
x + y - z, x - 2 and a - b => x plus y minus z, x minus two and a - b
9.8 m/s² => nine point eight meters per second squared
two vs three => two versus three
a != b, a >= b, a == b => a is not equal to b, a at least b, a equals b
2024-03-15T10:30:00Z => March fifteenth, twenty twenty-four at ten thirty UTC
2/3rds => two thirds
₹100 => one hundred rupees
ISBN 978-3-16-148410-0 => ISBN nine seven eight, three, one six, one four eight four one zero, zero
Rm. 204 => room two hundred four
March 3, 2021 => March third, twenty twenty-one
2021-03-14 => March fourteenth, twenty twenty-one
5 May 2020 => the fifth of May, twenty twenty
The 1st of May => The first of May
the 4th of July => the fourth of July
Jan. 5 => January fifth
Feb 3rd, 1999 => February third, nineteen ninety-nine
at 3:45 pm. => at three forty-five P.M.
At 3 p.m. she left. => At three P.M. she left.
It's 3:00 => It's three o'clock
10:05 => ten oh five
12:00 am => twelve A.M.
15:30:10 => fifteen thirty and ten seconds
3pm-5pm => three P.M. to five P.M.
$5 => five dollars
$1 => one dollar
$5.50 => five dollars and fifty cents
$0.99 => ninety-nine cents
$1,000,000 => one million dollars
£3m => three million pounds
£5.01 => five pounds and one penny
$1.2 billion => one point two billion dollars
US$5m => five million dollars
€20 => twenty euros
20€ => twenty euros
¥100 => one hundred yen
50¢ => fifty cents
$3/hour => three dollars per hour
-$5 => minus five dollars
$-5 or €-2.50 => minus five dollars or minus two euros and fifty cents
$5-$10 => five dollars to ten dollars
50% => fifty percent
-3.5% => minus three point five percent
10%-20% => ten percent to twenty percent
1/2 => one half
3/4 => three quarters
2/3 => two thirds
3 1/4 => three and one quarter
3½ cups => three and one half cups
10³ => ten cubed
8 ≠ 9 => eight is not equal to nine
10−5 => ten minus five
5 km => five kilometers
10kg => ten kilograms
20 °C => twenty degrees Celsius
100°F => one hundred degrees Fahrenheit
60mph => sixty miles per hour
100km/h => one hundred kilometers per hour
10 m² => ten square meters
1 ft => one foot
100 ft. tall => one hundred feet tall
5'6" => five feet six inches
3-4 km => three to four kilometers
call 555-1234 => call five five five, one two three four
(555) 123-4567 => five five five, one two three, four five six seven
+1 555 123 4567 => plus one, five five five, one two three, four five six seven
Henry VIII => Henry the eighth
Louis XIV's => Louis the fourteenth's
I read Malcolm X. He was great. => I read Malcolm X. He was great.
It rose by 10 %–20 %. => It rose by ten percent to twenty percent.
5kg-10kg at 20 °C – 25 °C => five kilograms to ten kilograms at twenty degrees Celsius to twenty-five degrees Celsius
5 €–10 €, 5 £-10 £ => five euros to ten euros, five pounds to ten pounds
John I think => John I think
Chapter IV => Chapter four
World War II => World War two
Mr. Smith and Mrs. Jones => Mister Smith and Missus Jones
Dr. Smith lives on Elm Dr. => Doctor Smith lives on Elm Drive.
a Dr. said => a Doctor said
12 Elm Dr. is far => twelve Elm Drive is far
St. Paul's on Main St. => Saint Paul's on Main Street.
on Elm St. The shop => on Elm Street. The shop
apples, pears, etc. => apples, pears, et cetera.
e.g., this => for example, this
i.e. that => that is, that
cats vs. dogs => cats versus dogs
No. 5 => number five
no. That's => no. That's
p. 5 => page five
Lt. Dan => Lieutenant Dan
Acme Inc. said => Acme incorporated said
R&D => R and D
me@example.com => me at example dot com
see www.example.com. => see w w w dot example dot com.
https://example.org/x => example dot org slash x
#5 => number five
#tag => hashtag tag
2+2=4 => two plus two equals four
α and β => alpha and beta
“Hello” — she said… => "Hello" - she said...
wait -- what => wait - what
naïve café => naive cafe
Straße => Strasse
ﬁne => fine
-5 degrees => minus five degrees
1,234,567 => one million two hundred thirty-four thousand five hundred sixty-seven
3.14 => three point one four
.5 => point five
1st 2nd 23rd => first second twenty-third
10-20 => ten to twenty
007 => zero zero seven
1.2.3 => one point two point three
٣ => three
FY2023 => FY twenty twenty-three
B2B => B two B
NASA and the U.S. Senate => NASA and the U.S. Senate
5-year-old => five-year-old
1/2 tsp of salt => one half teaspoon of salt
3/4 oz => three quarters of an ounce
1 1/2 hrs. of work => one and one half hours of work
I live on 5th St. It is nice. => I live on fifth Street. It is nice.
at 5 p.m. EST. => at five P.M. EST.
Tell Ed. He knows. => Tell Ed. He knows.
and/or => and or
<b>bold</b> => bold
Call 415-555-2671 now. => Call four one five, five five five, two six seven one now.
415.555.2671 or 415 555-2671 => four one five, five five five, two six seven one or four one five, five five five, \
two six seven one
1-800-555-1234 => one, eight zero zero, five five five, one two three four
Appendix C, Class C, Grade C, Section C and Unit C => Appendix C, Class C, Grade C, Section C and Unit C
USB Type C, Table L, TYPE C => USB Type C, Table L, TYPE C
Charles L. Brown => Charles L. Brown
In Part I think so. => In Part I think so.
Part I of Volume V, Act X => Part one of Volume five, Act ten
World War I began. Type I error => World War one began. Type one error
Class X and Grade V => Class X and Grade V
Appendix CI, Title IX, Section XL => Appendix one hundred one, Title nine, Section forty
1 500 000 people => one million five hundred thousand people
$12 345 678 => twelve million three hundred forty-five thousand six hundred seventy-eight dollars
+44 207 946 095 => plus four four, two zero seven, nine four six, zero nine five
1:100 and 1:25000 or 1:25,000 => one to one hundred and one to twenty-five thousand or one to twenty-five thousand
at 1:50 => at one fifty
a 10k run, 10-20k, 2.5k => a ten thousand run, ten to twenty thousand, two point five thousand
100K, 1.5k. => one hundred thousand, one point five thousand.
4K TV, 4k video, 5K => four K TV, four k video, five K
The code is 276983. Your OTP: 4071 => The code is two seven six nine eight three. Your OTP: four zero seven one
card 4111 1111 1111 1111 => card four one one one, one one one one, one one one one, one one one one
The code is 5 lines, 5000 lines or 100 % done => The code is five lines, five thousand lines or one hundred percent done
example.org/a_b?c=1 => example dot org slash a underscore b question mark c equals one
a snake_case name, _so_ __init__ => a snake case name, so init
401k and 401(k) => four hundred one k and four hundred one(k)
2k + 1, y = 2k, 10kHz => two k plus one, y equals two k, ten kilohertz
5bn, 5 bn or 1.5B people => five billion, five billion or one point five billion people
1 B, a 7B model, 5G => one B, a seven B model, five G
$5 m, $5 bn or £2.5 tn => five million dollars, five billion dollars or two point five trillion pounds
$4K, $401k => four thousand dollars, four hundred one thousand dollars
5½% or 5 1/2% => five and a half percent or five and a half percent
1/2%, 3/4% and 2 1/4 % => one half percent, three quarters of a percent and two and one quarter percent
-1/2%, -1 3/4 km => minus one half percent, minus one and three quarters kilometers
1/3rd, 1/2nd => one third, one half
5 ft. 2 in. => five feet two inches.
She is 5 ft. 2 in. tall, he 6 ft 1 in. => She is five feet two inches tall, he six feet one inch.
1 ft. 11 in., and 2 in the box => one foot eleven inches, and two in the box
May 1–3, 2020 => May first to third, twenty twenty
Sept. 10th-12th => September tenth to twelfth
1-3 May => the first to third of May
the 1st-3rd of May 2020 => the first to third of May, twenty twenty
May 10-7 => May ten to seven
12-25-2020 or 25-12-2020 => December twenty-fifth, twenty twenty or December twenty-fifth, twenty twenty
99-99-2020 => ninety-nine-ninety-nine-two thousand twenty
Sat. 5 Oct. => Saturday the fifth of October
Sun., Oct. 6 and Fri. Oct. 4 => Sunday, October sixth and Friday October fourth
Open Sat. and Sun. until noon => Open Saturday and Sunday until noon
We met on Sun. It rained. => We met on Sunday. It rained.
He sat. Then he sat in the sun. => He sat. Then he sat in the sun.
He sat. 5 men came. => He sat. five men came.
The Sun. It is hot. => The Sun. It is hot.
HE SAT. THEN => HE SAT. THEN
"""


@pytest.mark.parametrize("line", GOLDEN.strip().splitlines())
def test_what_is_written_becomes_what_is_said(line: str) -> None:
    written, said = line.split(" => ")
    assert normalise(written) == said
    assert normalise(said) == said


@pytest.fixture
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phonate.text.phonemes._reported", set())


@pytest.mark.usefixtures("nothing_reported")
def test_a_character_that_cannot_be_said_is_dropped_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="phonate"):
        assert normalise("one \U0001f98a fox") == "one fox"
        assert normalise("two \U0001f98a foxes") == "two foxes"
    assert [record.getMessage() for record in caplog.records] == [
        "left out, without an English pronunciation: \U0001f98a (fox face)"
    ]


@pytest.mark.usefixtures("nothing_reported")
def test_characters_of_another_script_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="phonate"):
        assert normalise("say բարեւ twice: բարեւ") == "say twice:"
    (record,) = caplog.records
    assert record.getMessage() == "left out, without an English pronunciation: բարեւ (5 Armenian characters)"


def test_characters_are_named_in_words_that_a_header_can_hold() -> None:
    said = named("你好吗Жは\u3099\U0001f98aʬ\ue000")
    assert said == (
        "3 Chinese characters, 1 Cyrillic character, 1 Japanese character, "
        "combining katakana-hiragana voiced sound mark, fox face, latin letter bilabial percussive, U+E000"
    )
    assert named("々カー") == "1 Chinese character, 2 Japanese characters"
    assert named("❤\ufe0fµℂ") == "heavy black heart, variation selector-16, micro sign, double-struck capital c"
    many = named(list(map(chr, range(0x1F600, 0x1F640))))
    assert many.endswith(" and 44 others")
    assert many.count(", ") == 19


PIECES = st.sampled_from(
    str.split(
        "Mr. Dr. St. No. etc. e.g. p.m. 5 12 3:45 1984 '90s 1/2 - -- … . , ; ! ( ) \" ' $ £ % & @ # + = / < ° km m V I "
        "Henry Chapter March Jan. 2021-03-14 a b The U.S. x.com a@b.co _ ½ ² 007 1,234 .5 555-1234 1st bn é 你 th s"
    )
)
WRITTEN = st.one_of(
    st.text(max_size=40), st.lists(PIECES, max_size=8).map(" ".join), st.lists(PIECES, max_size=8).map("".join)
)


@given(WRITTEN)
@settings(max_examples=400)
def test_normalising_twice_changes_nothing_and_leaves_letters_and_marks(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert once.isascii()
    assert not any(character.isdigit() or character in "$%&@#+=/<>\\" for character in once)


@pytest.mark.timeout(60)
def test_a_long_text_is_no_worse_than_its_parts() -> None:
    """Time grows with length, not with its square, which would be minutes."""
    long = "Dr. Smith paid $5.50 on March 3, 2021 at Elm St. near St. Paul, etc. and 10 km away; 1/2 there. " * 200
    assert normalise(long).count("five dollars and fifty cents") == 200
    normalise("1-" * 5000)

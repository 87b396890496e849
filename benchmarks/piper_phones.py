"""How often a voice exported to Piper is sent the tokens that it learnt: phonate's espeak beside Piper's, by language.

    python benchmarks/piper_phones.py [CODE...] [--texts CODE=FILE...] [--differences N]

Of each language code of phonate's espeak: the share of texts for which Piper's phonemes, after the ids and the graph of
an exported voice, are the tokens of training. Texts are two to ten sentences, those of FILE (a line each, or the
columns of a metadata.csv), or for other codes the numbers from 0 to 99, which both read as words.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import itertools
from pathlib import Path

import torch
from piper.phoneme_ids import phonemes_to_ids
from piper.phonemize_espeak import EspeakPhonemizer as PiperPhonemizer
from piper.tashkeel import TashkeelDiacritizer
from torch import nn

from phonate.config.errors import InputError
from phonate.tasks.speech.export import piper_config, piper_numbers
from phonate.tasks.speech.graph import SpokenPiper
from phonate.text.espeak import EspeakPhonemizer, _library
from phonate.text.phonemes import START, Inventory

SENTENCES = {
    "ar": """
        في الصباح أشرب القهوة مع أمي في المطبخ.
        هل تعرف أين تقع محطة القطار؟
        كتب الطالب رسالة طويلة إلى صديقه.
        الطقس جميل اليوم، والسماء صافية.
        ذهبنا إلى السوق واشترينا الخبز والفاكهة.
        يعمل أبي طبيبا في مستشفى المدينة.
        لا أريد أن أتأخر عن الدرس!
        قرأت كتابا عن تاريخ البحر القديم.
        سوف نسافر إلى الجبل في الصيف.
        شكرا لك على هذه الهدية الجميلة.
        """,
    "be": """
        Раніцай я п'ю гарбату і чытаю газету.
        Дзе знаходзіцца чыгуначны вакзал?
        Заўтра мы паедзем на возера.
        """,
    "bg": """
        Всяка сутрин пием кафе на балкона.
        Къде се намира гарата?
        Децата играят в градината зад къщата.
        Утре ще отидем на море, ако не вали.
        Каква хубава изненада!
        """,
    "bn": """
        আমি প্রতিদিন সকালে চা খাই।
        রেল স্টেশন কোথায়?
        আজ আবহাওয়া খুব ভালো।
        """,
    "ca": """
        La família dina plegada cada diumenge.
        On és l'estació de tren?
        Demà anirem a la platja amb els cosins.
        Quan plou, prefereixo quedar-me a casa.
        Quina sorpresa tan agradable!
        """,
    "chr": """
        ᎣᏏᏲ, ᏙᎯᏧ?
        ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ.
        """,
    "cmn": """
        今天天气很好。
        你知道火车站在哪里吗？
        我们明天去海边玩。
        妈妈在厨房做饭。
        这本书讲的是中国历史。
        """,
    "cs": """
        Ráno piju čaj a čtu noviny.
        Kde je nejbližší zastávka autobusu?
        Děti si hrají na zahradě za domem.
        Zítra pojedeme k moři, pokud nebude pršet.
        Jaké krásné počasí!
        """,
    "cv": """
        Салам, мӗнле пурӑнатӑн?
        Паян ҫанталӑк аван.
        """,
    "da": """
        Børnene cykler til skole hver morgen.
        Hvor ligger banegården?
        Min mormor bager de bedste boller i byen.
        I morgen tager vi til stranden, hvis solen skinner.
        Sikke en smuk udsigt!
        """,
    "de": """
        Das Radio der Familie steht in der Küche.
        Am Freitag treffen wir uns vor dem großen Brunnen.
        Kannst du mir bitte das Brot reichen?
        Die Studenten schreiben morgen eine Prüfung, danach feiern sie.
        Trotz des Regens gingen drei Kinder zur Schule.
        Er kaufte frische Äpfel, Birnen und ein Glas Honig.
        Unsere Nachbarin spielt abends oft Klavier.
        Warum hast du gestern nicht angerufen?
        Die Lokomotive fuhr langsam über die alte Brücke.
        Ich freue mich sehr auf den Frühling!
        """,
    "el": """
        Κάθε πρωί πίνω καφέ και διαβάζω εφημερίδα.
        Πού είναι ο σταθμός του τρένου;
        Τα παιδιά παίζουν στον κήπο πίσω από το σπίτι.
        Αύριο θα πάμε στη θάλασσα, αν δεν βρέξει.
        Τι όμορφη μέρα!
        """,
    "en": """
        The old farm is near the river.
        Where did you leave my keys?
        Forty children danced in the warm water of the harbour.
        If it rains tomorrow, we will stay at home and read.
        What a lovely surprise!
        Thirty lorries turned north before four o'clock.
        She poured the coffee and asked about the journey.
        He has never heard of that law.
        The teacher wrote a long sentence on the board.
        Better late than never, said the captain.
        """,
    "es": """
        La familia come junta todos los domingos.
        ¿Dónde está la estación de trenes?
        Mañana iremos a la playa con nuestros primos.
        El perro corre por el jardín y ladra sin parar.
        Me gustaría un café con leche, por favor.
        Los estudiantes leyeron un libro muy antiguo.
        Cuando llueve, prefiero quedarme en casa.
        Mi hermana trabaja en una oficina del centro.
        ¡Qué sorpresa verte por aquí!
        El tren llegó tarde a causa de la nieve.
        """,
    "et": """
        Lapsed sõidavad igal hommikul rattaga kooli.
        Kus on lähim bussipeatus?
        Homme läheme randa, kui päike paistab.
        """,
    "fa": """
        من هر روز صبح چای می‌نوشم.
        ایستگاه قطار کجاست؟
        بچه‌ها در باغ پشت خانه بازی می‌کنند.
        فردا به کنار دریا می‌رویم.
        هوا امروز خیلی خوب است.
        """,
    "fi": """
        Lapset pyöräilevät kouluun joka aamu.
        Missä on lähin bussipysäkki?
        Isoäiti leipoo kylän parhaat pullat.
        Huomenna menemme rannalle, jos aurinko paistaa.
        Mikä kaunis näkymä!
        """,
    "fr": """
        Le boulanger ouvre sa boutique avant l'aube.
        Où se trouve la gare, s'il vous plaît ?
        Nous partirons demain matin avec les enfants.
        Ma sœur étudie l'histoire à l'université.
        Il fait froid, mais le soleil brille.
        Les oiseaux chantent dans le vieux chêne.
        J'ai oublié mes clés sur la table de la cuisine.
        Quand reviendras-tu de voyage ?
        Ce livre raconte la vie d'un pêcheur breton.
        Quelle belle journée pour une promenade !
        """,
    "gn": """
        Mba'éichapa reime?
        Che ha'e peteĩ mbo'ehára.
        """,
    "grc": """
        ἐν ἀρχῇ ἦν ὁ λόγος.
        τί ἐστιν ἀλήθεια;
        """,
    "gu": """
        હું દરરોજ સવારે ચા પીઉં છું.
        રેલવે સ્ટેશન ક્યાં છે?
        આજે હવામાન સારું છે.
        """,
    "he": """
        אני שותה קפה כל בוקר.
        איפה נמצאת תחנת הרכבת?
        הילדים משחקים בגינה מאחורי הבית.
        מחר ניסע לים עם החברים.
        איזה יום יפה!
        """,
    "hi": """
        मैं रोज़ सुबह चाय पीता हूँ।
        रेलवे स्टेशन कहाँ है?
        बच्चे घर के पीछे बगीचे में खेल रहे हैं।
        कल हम समुद्र के किनारे जाएँगे।
        आज मौसम बहुत अच्छा है।
        """,
    "hu": """
        A gyerekek minden reggel biciklivel mennek iskolába.
        Hol van a vasútállomás?
        Holnap a tóhoz megyünk, ha nem esik az eső.
        A nagymamám finom süteményt sütött.
        Milyen szép kilátás!
        """,
    "id": """
        Setiap pagi saya minum kopi di beranda.
        Di mana stasiun kereta api?
        Anak-anak bermain di kebun belakang rumah.
        Besok kami pergi ke pantai bersama teman.
        Cuaca hari ini sangat bagus!
        """,
    "it": """
        La mattina bevo un caffè e leggo il giornale.
        Dove si trova la fermata dell'autobus?
        I bambini giocano nel giardino della scuola.
        Mia nonna prepara una torta di mele squisita.
        Domani andremo al mare, se non piove.
        Il treno per Milano parte fra poco.
        Ho dimenticato l'ombrello a casa di Giulia.
        Che bella sorpresa!
        Gli studenti ascoltano la lezione in silenzio.
        Quando torna tuo fratello dalla montagna?
        """,
    "ja": """
        きょうはてんきがいいです。
        えきはどこですか。
        あしたともだちとうみへいきます。
        こどもたちがにわであそんでいます。
        とてもきれいなはなですね。
        """,
    "ko": """
        오늘은 날씨가 좋습니다.
        기차역이 어디에 있습니까?
        아이들이 마당에서 놀고 있습니다.
        내일 친구들과 바다에 갑니다.
        이 책은 아주 재미있습니다.
        """,
    "ky": """
        Мен күн сайын чай ичем.
        Вокзал кайда?
        Бүгүн аба ырайы жакшы.
        """,
    "lb": """
        Haut ass d'Wieder schéin.
        Wou ass d'Gare?
        Muer gi mir an de Bësch.
        """,
    "lv": """
        Bērni katru rītu brauc uz skolu.
        Kur ir tuvākā pietura?
        Rīt mēs dosimies uz jūru.
        """,
    "mr": """
        मी रोज सकाळी चहा पितो.
        रेल्वे स्थानक कुठे आहे?
        आज हवामान खूप चांगले आहे.
        """,
    "my": """
        ကျွန်တော် ကျောင်းသွားသည်။
        ဘူတာ ဘယ်မှာလဲ။
        """,
    "nb": """
        Barna sykler til skolen hver morgen.
        Hvor ligger jernbanestasjonen?
        Bestemor baker de beste bollene i bygda.
        I morgen drar vi til stranden, hvis sola skinner.
        For en vakker utsikt!
        """,
    "nci": """
        Niltze, quen tinemi?
        In atl ihuan in tepetl.
        """,
    "ne": """
        म हरेक बिहान चिया खान्छु।
        रेल स्टेशन कहाँ छ?
        आज मौसम राम्रो छ।
        """,
    "nl": """
        De kinderen fietsen elke ochtend naar school.
        Waar kan ik een kaartje voor de trein kopen?
        Het regende de hele dag, maar 's avonds scheen de zon.
        Mijn oma bakt de lekkerste appeltaart van het dorp.
        Wij gaan morgen naar het strand.
        De leraar schrijft een lange zin op het bord.
        Heb je gisteren de wedstrijd gezien?
        Zij woont met haar familie aan de gracht.
        Wat een prachtig uitzicht!
        De bakker opent zijn winkel heel vroeg.
        """,
    "pa": """
        ਮੈਂ ਰੋਜ਼ ਸਵੇਰੇ ਚਾਹ ਪੀਂਦਾ ਹਾਂ।
        ਰੇਲਵੇ ਸਟੇਸ਼ਨ ਕਿੱਥੇ ਹੈ?
        """,
    "pl": """
        Rano piję herbatę i czytam gazetę.
        Gdzie jest najbliższy przystanek autobusowy?
        Dzieci bawią się w ogrodzie za domem.
        Moja siostra studiuje historię w Krakowie.
        Jutro pojedziemy nad morze, jeśli nie będzie padać.
        Pies szczeka na listonosza.
        Zapomniałem parasola w pociągu.
        Jaka piękna pogoda!
        Babcia upiekła pyszny sernik na święta.
        Kiedy wrócisz z podróży?
        """,
    "pt": """
        A família almoça junta aos domingos.
        Onde fica a estação de comboios?
        Amanhã vamos à praia com os nossos primos.
        O cão corre pelo jardim e não para de ladrar.
        Gostaria de um café com leite, por favor.
        Os estudantes leram um livro muito antigo.
        Quando chove, prefiro ficar em casa.
        A minha irmã trabalha num escritório no centro.
        Que bela surpresa!
        O avô conta histórias do mar às crianças.
        """,
    "py": """
        Kono wakawaka.
        Mi save tok.
        """,
    "quc": """
        Saqarik, la utz awach?
        Kinwaj kinwilo.
        """,
    "qya": """
        Elen síla lúmenn' omentielvo.
        Namárië!
        """,
    "ro": """
        În fiecare dimineață beau cafea pe balcon.
        Unde se află gara?
        Copiii se joacă în grădina din spatele casei.
        Mâine mergem la mare, dacă nu plouă.
        Ce surpriză frumoasă!
        """,
    "ru": """
        Каждое утро я пью чай и читаю газету.
        Где находится железнодорожный вокзал?
        Дети играют в саду за домом.
        Завтра мы поедем на море, если не будет дождя.
        Какая прекрасная погода!
        """,
    "shn": """
        မႂ်ႇသုင်ၶႃႈ။
        ၵိၼ်ၶဝ်ႈယဝ်ႉႁိုဝ်ႉ။
        """,
    "si": """
        මම හැම උදේම තේ බොනවා.
        දුම්රිය පොළ කොහෙද?
        අද කාලගුණය හොඳයි.
        """,
    "sjn": """
        Mae govannen, mellon nîn.
        Pedo mellon a minno!
        """,
    "sk": """
        Ráno pijem čaj a čítam noviny.
        Kde je najbližšia zastávka autobusu?
        Deti sa hrajú v záhrade za domom.
        Zajtra pôjdeme k moru, ak nebude pršať.
        Aké krásne počasie!
        """,
    "sv": """
        Barnen cyklar till skolan varje morgon.
        Var ligger järnvägsstationen?
        Min mormor bakar de godaste bullarna i byn.
        I morgon åker vi till stranden, om solen skiner.
        Läraren skriver en lång mening på tavlan.
        Såg du matchen i går kväll?
        Hon bor med sin familj vid en liten sjö.
        Vilken vacker utsikt!
        Jag glömde mina nycklar på köksbordet.
        Tåget blev försenat på grund av snön.
        """,
    "tr": """
        Çocuklar her sabah okula yürüyerek gidiyor.
        Tren istasyonu nerede?
        Yarın arkadaşlarımla denize gideceğiz.
        Annem mutfakta güzel bir çorba pişiriyor.
        Dün akşam çok yağmur yağdı, ama bugün güneşli.
        Öğretmen tahtaya uzun bir cümle yazdı.
        Anahtarımı masanın üzerinde unuttum.
        Ne güzel bir gün!
        Kardeşim üniversitede tarih okuyor.
        Bu kitabı daha önce okudun mu?
        """,
    "uk": """
        Щоранку я п'ю чай і читаю газету.
        Де знаходиться залізничний вокзал?
        Діти граються в саду за будинком.
        Завтра ми поїдемо на море, якщо не буде дощу.
        Яка чудова погода!
        """,
    "vi": """
        Mỗi buổi sáng tôi uống cà phê.
        Nhà ga ở đâu?
        Trẻ em chơi trong vườn sau nhà.
        Ngày mai chúng tôi đi biển với bạn bè.
        Hôm nay trời rất đẹp.
        """,
    "yue": """
        今日天氣好好。
        火車站喺邊度？
        我哋聽日去海邊。
        """,
}
NUMBERS = [str(number) for number in range(100)]


class Sent:
    """What Piper sends to an exported voice, as tokens."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.numbers = numbers = piper_numbers(inventory)
        self.graph = SpokenPiper(nn.Identity(), numbers.tokens, numbers.weights, rules=numbers.rules)  # type: ignore[arg-type]
        self.voice = piper_config(numbers, "voice", inventory.language, ["one"], 22050, 256)["espeak"]["voice"]
        self.diacritics = TashkeelDiacritizer() if self.voice == "ar" else None
        self.phonemizer = PiperPhonemizer()

    def __call__(self, text: str) -> list[str]:
        """The tokens of all sentences of `text`, START once."""
        tokens = [START]
        for phonemes in self.phonemizer.phonemize(self.voice, self.diacritics(text) if self.diacritics else text):
            sent = torch.tensor([phonemes_to_ids(phonemes, self.numbers.of_phonemes)])
            heard = self.graph.tokens(sent, torch.tensor([sent.shape[1]]))[0].tolist()
            tokens += [self.inventory.symbols[token] for token in heard[1:]]
        return tokens


def texts_of(code: str, files: dict[str, Path]) -> tuple[str, list[str]]:
    """A name of the texts of a language, and these."""
    if code in files:
        lines = files[code].read_text(encoding="utf-8").splitlines()
        return files[code].name, [line.rpartition("|")[2].strip() for line in lines if line.strip()]
    if (primary := code.partition("-")[0]) in SENTENCES:
        return "sentences", [line.strip() for line in SENTENCES[primary].strip().splitlines()]
    return "numbers", NUMBERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codes", nargs="*")
    parser.add_argument("--texts", nargs="*", default=[], metavar="CODE=FILE")
    parser.add_argument("--differences", type=int, default=0, metavar="N", help="print the N most frequent ones")
    options = parser.parse_args()
    files = {code: Path(path) for code, _, path in (text.partition("=") for text in options.texts)}
    print("| code | texts | number | same | equal tokens |\n| --- | --- | ---: | ---: | ---: |")
    for code in options.codes or _library().voices:
        phonemizer = EspeakPhonemizer(code)
        name, texts = texts_of(code, files)
        try:
            sent = Sent(Inventory.of(phonemizer))
            pairs = [(sent.inventory.tokens(phonemizer(text)), sent(text)) for text in texts]
        except (InputError, RuntimeError) as error:
            print(f"| {code} | {name} | {len(texts)} | refused: {error} | |")
            continue
        differences: collections.Counter[tuple[str, str]] = collections.Counter()
        examples = {}
        equal = 0
        for ours, theirs in pairs:
            for kind, first, end, start, stop in difflib.SequenceMatcher(None, ours, theirs, False).get_opcodes():
                if kind == "equal":
                    equal += end - first
                    continue
                key = ("".join(ours[first:end]), "".join(theirs[start:stop]))
                differences[key] += 1
                around = ours[max(0, first - 9) : end + 9], theirs[max(0, start - 9) : stop + 9]
                examples.setdefault(key, tuple("".join(one).replace("<word>", " ") for one in around))
        same = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
        share = equal / max(1, sum(max(map(len, pair)) for pair in pairs))
        print(f"| {code} | {name} | {len(texts)} | {same:.0%} | {share:.1%} |", flush=True)
        for (ours_, theirs_), count in itertools.islice(differences.most_common(), options.differences):
            print(f"    {count} {ours_!r} {theirs_!r}: {examples[ours_, theirs_]}")


if __name__ == "__main__":
    main()

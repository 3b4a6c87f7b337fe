"""Chat prompts of about 1,000 tokens: a question about an invented text, put together from phrases written for this demo."""

import dataclasses
import random

WORDS = 700  # of a text; about 1,000 tokens with the question and the chat template


@dataclasses.dataclass(frozen=True)
class Topic:
    """An invented text and what is asked about it.

    Attributes:
        name: for the report.
        opening: how the text begins.
        entry: pattern of each further sentence group; `{n}` counts from 1, other fields are slots.
        slots: phrases to choose from, by field.
        question: asked after the text.
    """

    name: str
    opening: str
    entry: str
    slots: dict[str, tuple[str, ...]]
    question: str

    def text(self) -> str:
        """Return the text: the opening and as many entries as `WORDS` asks for. The same at every call."""
        choose = random.Random(self.name)
        parts = [self.opening]
        while sum(len(part.split()) for part in parts) < WORDS:
            chosen = {slot: choose.choice(phrases) for slot, phrases in self.slots.items()}
            parts.append(self.entry.format(n=len(parts), **chosen))
        return "\n".join(parts)

    def messages(self) -> list[dict[str, str]]:
        """Return the chat: one message of the user."""
        return [{"role": "user", "content": f"{self.text()}\n\n{self.question}"}]


LIGHTHOUSE = Topic(
    "lighthouse",
    "Log of the lighthouse on Skarholm, kept by Ragna Ellevik. The lamp is electric, the fog horn runs on compressed air, and "
    "the supply boat comes when the sea allows it.",
    "Day {n}. {wind} {trouble} {deed}",
    {
        "wind": (
            "Calm sea and a thin haze until noon.",
            "Wind from the north-west, strong enough to rattle the shutters.",
            "Fog so thick that the jetty could not be seen from the door.",
            "A clear night, with the lights of the mainland in a row.",
            "Rain from dawn to dusk.",
        ),
        "trouble": (
            "The fog horn gave a weak note and then none at all.",
            "A fishing boat came too close to the eastern reef and turned away late.",
            "The supply boat did not come.",
            "Salt had crept into the lamp's contacts again.",
            "Two gulls were found in the gallery, one of them hurt.",
            "The cistern is lower than it ought to be in this season.",
        ),
        "deed": (
            "I took the valve apart, cleaned it, and wrote to the harbour office for a new seal.",
            "I wrote down the hour and the boat's number.",
            "I baked with the last of the flour and went to bed early.",
            "I polished the lens and checked the spare lamp twice.",
            "I measured the water with the long rod and marked the wall with chalk.",
        ),
    },
    "Summarise this log in a paragraph. Then explain in detail which troubles came back and what the keeper did about them.",
)

ALLOTMENTS = Topic(
    "allotments",
    "Minutes of the yearly meeting of the Brook Lane allotment society, held in the old boiler house. Thirty-one members were "
    "there. The treasurer's report had been sent out before the meeting.",
    "Item {n}. {who} {matter} {outcome}",
    {
        "who": ("Mrs Adeyemi", "The treasurer", "Mr Quist", "The youngest member, Tomas,", "The owner of plot nine"),
        "matter": (
            "asked that the gate be closed at night, since deer had eaten a whole row of beans.",
            "reported that the pump by the brook had been repaired twice in one summer.",
            "proposed to buy a second-hand shredder and to share it by a list on the shed door.",
            "complained that the path to the compost heap is under water after every rain.",
            "suggested a day in April on which everyone helps to clear the ditch.",
            "wanted to know why the price of seed potatoes had gone up by a third.",
        ),
        "outcome": (
            "After some talk this was agreed, with two votes against.",
            "The matter was put off until the spring.",
            "Nobody objected, and the chair thanked the speaker.",
            "It was decided to ask the town for money first.",
            "A small group will look into it and report by letter.",
        ),
    },
    "Write a letter to a member who missed the meeting. Tell them in full sentences what was discussed and decided.",
)

PUMP = Topic(
    "pump test",
    "Test notes for the prototype of a solar water pump, written by three engineers in turn. The pump lifts water from a well "
    "of twelve metres into a tank of two cubic metres. The controller limits the motor's current.",
    "Run {n}. {condition} {seen} {next}",
    {
        "condition": (
            "Full sun, panels just cleaned.",
            "Broken clouds, with the light changing every few minutes.",
            "Early morning, panels cold and wet with dew.",
            "Late afternoon, one panel in the shadow of the mast.",
            "Full sun, but dust on all the panels.",
        ),
        "seen": (
            "The motor started at once and the tank was full in a little more than an hour.",
            "The motor started and stopped eleven times before the flow was steady.",
            "The controller became too hot to touch and switched itself off.",
            "The flow was a third lower than in the run before, for no reason that we could see.",
            "A grinding sound came from the coupling whenever the speed went up.",
        ),
        "next": (
            "We tightened the coupling and noted the torque.",
            "We changed the limit of the current and will repeat the run tomorrow.",
            "We drilled more holes into the controller's case.",
            "We found sand in the inlet filter and washed it out.",
            "We changed nothing, so that the next run can be compared with this one.",
        ),
    },
    "Explain to the customer what was tested, what went wrong, and what should be changed before the pump is sold.",
)

HUT = Topic(
    "mountain hut",
    "From the notebook of Ines Carrasco, cook at a mountain hut at two thousand three hundred metres. Supplies come up by mule "
    "and by cable, and guests come whenever the weather lets them.",
    "Evening {n}. {guests} {meal} {thought}",
    {
        "guests": (
            "Four climbers came down late and wet.",
            "A school class filled the whole dormitory.",
            "Nobody came, because of the storm.",
            "A couple from the valley stayed to see the sunrise.",
            "Nine walkers arrived, three of whom eat no meat.",
        ),
        "meal": (
            "I cooked barley soup with carrots and the last smoked ham.",
            "There was bread and cheese only, since the gas had run out.",
            "I made dumplings with spinach from the glass house and browned butter.",
            "The lentils took two hours, as water boils so early up here.",
            "I baked a plum cake and it was gone before the coffee was ready.",
        ),
        "thought": (
            "We must ask for more gas before the end of the month.",
            "The mule driver says that the lower path has slid away.",
            "Someone left a book of poems on the bench, and I read half of it.",
            "The oven door still does not close, so I wedge it with a spoon.",
            "I have learned to cook the beans the night before.",
        ),
    },
    "Describe the life of this cook to someone who has never been in the mountains, using what the notebook says.",
)

TRAINS = Topic(
    "night trains",
    "Diary of a journey by night train from the north of Norway to the south of Italy, written by a retired clock maker who "
    "does not like to fly. He carries one suitcase and a box with an old clock for his daughter.",
    "Leg {n}. {train} {event} {mood}",
    {
        "train": (
            "The train left forty minutes late and made up half of it by morning.",
            "My compartment was shared with a cellist and her instrument.",
            "There was no sleeping car, so I sat by the window all night.",
            "The conductor woke me for the border and then for a second time by mistake.",
            "The dining car had only soup, but it was good soup.",
        ),
        "event": (
            "A student explained to me how her telephone keeps the time, and I explained the pendulum.",
            "I opened the box and the clock was still going, nine minutes slow.",
            "We stood for an hour in a forest, because of a fallen tree.",
            "An old man gave me an apple and told me about the station where he had worked.",
            "I missed the connection and slept on a bench under a broken clock.",
        ),
        "mood": (
            "I was tired, but content.",
            "I thought of my wife, who would have laughed.",
            "I wrote a postcard and forgot it on the table.",
            "I decided to tell my daughter nothing about this part.",
            "I slept better than at home.",
        ),
    },
    "Retell this journey as a short story in the third person. Keep to what happened and mention the clock.",
)

MUSEUM = Topic(
    "museum store",
    "Survey of the store of a small museum of local trades, made before the move to a new building. Each object was looked at "
    "by the restorer, Helga Brandt, and by a volunteer.",
    "Object {n}: {thing}. {state} {advice}",
    {
        "thing": (
            "a loom of oak, complete but for the treadles",
            "a box with forty-one glass slides of the old harbour",
            "a baker's sign in the form of a pretzel",
            "a pair of scales with weights in two systems",
            "a wooden model of a canal lock, made by a pupil",
            "a sewing machine with its table",
        ),
        "state": (
            "The wood is dry and sound, but the joints are loose.",
            "There are traces of woodworm, probably old.",
            "The metal parts are covered with rust that can be wiped off.",
            "The paint comes off in flakes when it is touched.",
            "It is in better order than the catalogue says.",
        ),
        "advice": (
            "To be wrapped in tissue and carried by two people.",
            "To be kept apart from all other objects for three months.",
            "To be photographed from all sides before anything is done.",
            "No treatment is needed.",
            "The label is wrong and must be written anew.",
        ),
    },
    "Write a plan for the move. Say which objects need special care, why, and in what order the work should be done.",
)

BEES = Topic(
    "bees",
    "Letters of a bee-keeper to her brother, one for each week of a summer. She has five hives at the edge of a wood.",
    "Week {n}. {hive} {weather}",
    {
        "hive": (
            "The second hive has swarmed, and I found the swarm in the neighbour's pear tree.",
            "I gave the weakest hive a frame of brood from the strongest.",
            "There was so little honey that I took none.",
            "Wasps stood at the entrances all day, so I made them narrower.",
        ),
        "weather": (
            "It has been too dry for the lime trees.",
            "It rained on the one day on which I had time.",
            "The evenings are warm and the whole garden hums.",
            "The first cold night came early this year.",
        ),
    },
    "Summarise these letters and say what the bee-keeper learned.",
)

WARM_UP = BEES
TOPICS = (LIGHTHOUSE, ALLOTMENTS, PUMP, HUT, TRAINS, MUSEUM)
